package main

import (
	"context"
	"net/http"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/otelfence"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
)

// telemetry is what a program sets up once: a meter provider with an exporter, hooks
// for its Lockers, and hooks for each of its fences.
type telemetry struct {
	meters   *sdkmetric.MeterProvider
	registry *prometheus.Registry
	hooks    fencelock.Hooks
	fence    fencelock.Hooks
}

func newTelemetry() (*telemetry, error) {
	t := &telemetry{registry: prometheus.NewRegistry()}
	exporter, err := promexporter.New(promexporter.WithRegisterer(t.registry), promexporter.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	// Spans go nowhere here; a program that has traces gives its tracer provider.
	if t.hooks, err = otelfence.New(t.meters, noop.NewTracerProvider()); err != nil {
		return nil, err
	}
	t.fence, err = otelfence.New(t.meters, noop.NewTracerProvider(), otelfence.WithFence("orders-db"))
	return t, err
}

func (t *telemetry) page() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{})
}

func (t *telemetry) close() error { return t.meters.Shutdown(context.Background()) }
