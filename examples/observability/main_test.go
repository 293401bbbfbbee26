package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEverySignalIsOnThePage runs the program, and holds the page against the dashboard
// and the rules: a metric that was renamed would leave a panel empty and an alert silent.
func TestEverySignalIsOnThePage(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, "127.0.0.1:0", true))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	page, err := parser.TextToMetricFamilies(&out)
	require.NoError(t, err)

	names, labels := map[string]string{}, map[string]bool{}
	for name, family := range page {
		if !strings.HasPrefix(name, "fencelock_") {
			continue
		}
		names[name] = name
		if family.GetType() == dto.MetricType_HISTOGRAM {
			delete(names, name)
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				names[name+suffix] = name
			}
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
	}
	require.Len(t, families(names), 17, "what otelfence has")

	words := regexp.MustCompile(`fencelock_\w+`)
	used := map[string]bool{}
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, word := range words.FindAllString(string(text), -1) {
			family, ok := names[word]
			assert.True(t, ok || labels[word], "%s: %s is neither a metric nor a label of the page", file, word)
			if ok && file == "dashboard.json" {
				used[family] = true
			}
		}
	}
	for family := range families(names) {
		assert.True(t, used[family], "no panel shows %s", family)
	}
}

func families(names map[string]string) map[string]bool {
	all := map[string]bool{}
	for _, family := range names {
		all[family] = true
	}
	return all
}

func TestMissingSignalsAreNamed(t *testing.T) {
	tel, err := newTelemetry()
	require.NoError(t, err)
	require.ErrorContains(t, missing(tel.registry), `unused: fencelock_tokens_unused_total{fencelock_lock_label="unused"} is not on the page`)
	require.NoError(t, tel.close())
}

// What Grafana wants of a dashboard, and a person of a panel.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Title         string
		UID           string
		SchemaVersion int
		Panels        []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, RefID string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Title)
	require.NotEmpty(t, dashboard.UID)
	require.NotZero(t, dashboard.SchemaVersion)
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "panel %q has the id of another", p.Title)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Empty(t, taken[[2]int{x, y}], "panel %q lies on another", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		assert.NotEmpty(t, p.Description, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			assert.NotEmpty(t, target.Expr, p.Title)
			assert.NotEmpty(t, target.RefID, p.Title)
		}
	}
}

// Every alert has its section in the operator's handbook.
func TestAlertsAreExplained(t *testing.T) {
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	handbook, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	require.Len(t, alerts, 12)
	for _, alert := range alerts {
		assert.Contains(t, string(rules), "docs/operating.md#"+strings.ToLower(alert[1])+".", "its annotation says where")
		assert.Regexp(t, `(?m)^#+ `+alert[1]+`$`, string(handbook))
	}
}
