FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /holdfast .

# Nothing but the binary and the certificates it checks rediss:// addresses with.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /holdfast /holdfast
USER 65532:65532

# A container's loopback is reached by nobody, so the image listens on all its addresses.
ENV HOLDFAST_LISTEN=0.0.0.0:8080
EXPOSE 8080

# SIGTERM, what `docker stop` sends, drains: give it the time (compose: stop_grace_period).
STOPSIGNAL SIGTERM
ENTRYPOINT ["/holdfast"]
# No Redis is set here on purpose: `serve` refuses to start without HOLDFAST_REDIS, and says so.
CMD ["serve"]
