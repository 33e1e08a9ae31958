package hammer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// residentMemory reads the resident set of a process on this machine, in bytes,
// where the system has /proc as Linux does.
func residentMemory(pid int) (int64, error) {
	if pid <= 0 {
		return 0, errors.New("no process given")
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("resident memory: %w", err)
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return 0, errors.New("resident memory: unknown format of statm")
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resident memory: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}
