package main

import (
	"errors"
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that people who see red and green alike can tell apart, and a printer too.
var (
	blue   = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	orange = color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}
	grey   = color.RGBA{R: 0xb0, G: 0xb0, B: 0xb0, A: 0xff}
)

// drawSVG writes a picture of the figures to a file: where the time of an uncontended
// cycle goes, and how a hand-over grows with the waiters.
func drawSVG(file string, f *figures) (err error) {
	cycle, err := cyclePlot(f)
	if err != nil {
		return err
	}
	handovers, err := handoverPlot(f)
	if err != nil {
		return err
	}
	canvas := vgsvg.New(24*vg.Centimeter, 10*vg.Centimeter)
	page := draw.New(canvas)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: 10 * vg.Millimeter, PadTop: 3 * vg.Millimeter,
		PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 5 * vg.Millimeter}
	plots := [][]*plot.Plot{{cycle, handovers}}
	for i, part := range plot.Align(plots, tiles, page)[0] {
		plots[0][i].Draw(part)
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("bench: picture: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := canvas.WriteTo(out); err != nil {
		return fmt.Errorf("bench: picture: %w", err)
	}
	return nil
}

// cyclePlot shows what an acquire and a release consist of: two ways to etcd and back,
// two commits, and the rest, which is what a lock adds to the bare requests.
func cyclePlot(f *figures) (*plot.Plot, error) {
	// A median of ours below the bare requests' is noise, and no time saved.
	names := []string{"bare requests", "fencelock", "concurrency.Mutex"}
	var ways, commits, rest plotter.Values
	for _, total := range []string{"raw_uncontended_p50_us", "uncontended_p50_us", "mutex_uncontended_p50_us"} {
		v, ok := f.medianOf(total)
		way, okWay := f.medianOf("round_trip_p50_us")
		raw, okRaw := f.medianOf("raw_uncontended_p50_us")
		if !ok || !okWay || !okRaw {
			return nil, fmt.Errorf("bench: no picture without %s", total)
		}
		ways = append(ways, 2*way)
		commits = append(commits, max(0, raw-2*way))
		rest = append(rest, max(0, v-raw))
	}
	p := plot.New()
	p.Title.Text = "An uncontended cycle"
	p.Y.Label.Text = "microseconds, median"
	p.Y.Min = 0
	p.NominalX(names...)
	p.Legend.Top = true
	var below *plotter.BarChart
	for _, part := range []struct {
		name   string
		values plotter.Values
		colour color.Color
	}{
		{"two round trips", ways, grey},
		{"two commits (raft, disk)", commits, blue},
		{"what the lock adds", rest, orange},
	} {
		bars, err := plotter.NewBarChart(part.values, 1.6*vg.Centimeter)
		if err != nil {
			return nil, fmt.Errorf("bench: picture: %w", err)
		}
		bars.Color, bars.LineStyle.Width = part.colour, 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(part.name, bars)
	}
	p.Y.Max *= 1.35 // room for the legend
	return p, nil
}

// handoverPlot shows the mean of a hand-over against the waiters, each in a process's
// place.
func handoverPlot(f *figures) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "A hand-over, no critical section"
	p.X.Label.Text = "waiters"
	p.Y.Label.Text = "milliseconds, mean"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	// What is read off are these, not the powers of ten.
	var ticks plot.ConstantTicks
	for _, n := range []int{2, 8, 16, 64, 512} {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	p.X.Tick.Marker = ticks
	var marks plot.ConstantTicks
	for _, ms := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500} {
		marks = append(marks, plot.Tick{Value: ms, Label: fmt.Sprint(ms)})
	}
	p.Y.Tick.Marker = marks
	p.Add(plotter.NewGrid())
	for _, line := range []struct {
		name, prefix string
		colour       color.Color
		shape        draw.GlyphDrawer
	}{
		{"fencelock", "handover_w", orange, draw.CircleGlyph{}},
		{"concurrency.Mutex", "mutex_handover_w", blue, draw.BoxGlyph{}},
	} {
		var points plotter.XYs
		for _, n := range []int{2, 8, 16, 64, 512} {
			if v, ok := f.medianOf(fmt.Sprintf("%s%d_mean_ms", line.prefix, n)); ok {
				points = append(points, plotter.XY{X: float64(n), Y: v})
			}
		}
		if len(points) == 0 {
			return nil, fmt.Errorf("bench: no picture without the hand-overs of %s", line.name)
		}
		if err := addLine(p, line.name, points, line.colour, line.shape); err != nil {
			return nil, err
		}
	}
	if floor, ok := f.medianOf("floor_mean_ms"); ok {
		least, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: floor}, {X: p.X.Max, Y: floor}})
		if err != nil {
			return nil, fmt.Errorf("bench: picture: %w", err)
		}
		least.Color, least.Dashes = color.Black, []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(least)
		p.Legend.Add("floor: deletion to event", least)
	}
	p.Legend.Top = true
	p.Y.Max *= 3 // room for the legend
	return p, nil
}

func addLine(p *plot.Plot, name string, points plotter.XYs, colour color.Color, shape draw.GlyphDrawer) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("bench: picture: %w", err)
	}
	line.Color, line.Width = colour, vg.Points(1.5)
	dots.Color, dots.Shape, dots.Radius = colour, shape, vg.Points(3)
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}
