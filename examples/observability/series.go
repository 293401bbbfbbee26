package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

type gatherer interface {
	Gather() ([]*dto.MetricFamily, error)
}

// series is the sum of all time series of one metric that have these labels, and
// perhaps others.
type series struct {
	metric string
	labels map[string]string
}

// of returns a series; labels are a name and a value in turns.
func of(metric string, labels ...string) series {
	s := series{metric: "fencelock_" + metric, labels: map[string]string{}}
	for i := 0; i < len(labels); i += 2 {
		s.labels["fencelock_"+labels[i]] = labels[i+1]
	}
	return s
}

func (s series) String() string {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(s.labels)) {
		labels = append(labels, fmt.Sprintf("%s=%q", name, s.labels[name]))
	}
	return s.metric + "{" + strings.Join(labels, ",") + "}"
}

// value returns the sum; of a histogram it is that of the counts.
func (s series) value(from gatherer) (sum float64, err error) {
	families, err := from.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() != s.metric {
			continue
		}
		for _, m := range family.GetMetric() {
			if s.covers(m) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum, nil
}

func (s series) covers(m *dto.Metric) bool {
	found := 0
	for _, l := range m.GetLabel() {
		if want, ok := s.labels[l.GetName()]; ok {
			if want != l.GetValue() {
				return false
			}
			found++
		}
	}
	return found == len(s.labels)
}
