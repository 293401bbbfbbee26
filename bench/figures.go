package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// figures holds what is reported: for each name one value a run.
type figures struct {
	all []*figure // in the order they came first
}

type figure struct {
	name, unit string
	runs       []float64
}

// add records the value of one run.
func (f *figures) add(name string, value float64, unit string) {
	for _, g := range f.all {
		if g.name == name {
			g.runs = append(g.runs, value)
			return
		}
	}
	f.all = append(f.all, &figure{name: name, unit: unit, runs: []float64{value}})
}

// medianOf returns the median over the runs of the figure with that name, and whether
// it was measured.
func (f *figures) medianOf(name string) (float64, bool) {
	for _, g := range f.all {
		if g.name == name {
			return median(g.runs), true
		}
	}
	return 0, false
}

// print writes one line a figure: name, median over the runs, unit; then how
// far the runs lie apart.
func (f *figures) print(w io.Writer) error {
	for _, g := range f.all {
		_, err := fmt.Fprintf(w, "%s %s %s min=%s max=%s runs=%d\n", g.name, number(median(g.runs)), g.unit,
			number(slices.Min(g.runs)), number(slices.Max(g.runs)), len(g.runs))
		if err != nil {
			return err
		}
	}
	return nil
}

// printJSON writes one object a line, with the value of each run in its order.
func (f *figures) printJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, g := range f.all {
		err := enc.Encode(struct {
			Name  string    `json:"name"`
			Value float64   `json:"value"`
			Unit  string    `json:"unit"`
			Min   float64   `json:"min"`
			Max   float64   `json:"max"`
			Runs  []float64 `json:"runs"`
		}{g.name, median(g.runs), g.unit, slices.Min(g.runs), slices.Max(g.runs), g.runs})
		if err != nil {
			return err
		}
	}
	return nil
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
