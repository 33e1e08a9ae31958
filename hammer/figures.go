package hammer

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Names of what a server may tell at /metrics.
const (
	figureConflicts = "holdfast_append_conflicts_total"
	figureMemory    = "process_resident_memory_bytes"
)

const figuresTimeout = 10 * time.Second

// serverFigures reads what a server tells of itself at /metrics, without what has labels.
func serverFigures(ctx context.Context, base string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, figuresTimeout)
	defer cancel()
	address := strings.TrimSuffix(base, "/") + "/metrics"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("figures of %s: %w", base, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("figures of %s: %w", base, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("figures of %s: %s answers %s", base, address, res.Status)
	}
	figures := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" || strings.Contains(name, "{") {
			continue
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			figures[name] = value
		}
	}
	return figures, lines.Err()
}
