package fencetest_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
)

// The example is a test like any other.
func TestExample(t *testing.T) { testPrices(t) }

// What Run itself does with a failure can be seen from outside only: this test is run
// again in a process of its own, in which it has to fail.
func TestRunFails(t *testing.T) {
	const child = "FENCETEST_RUN"
	switch os.Getenv(child) {
	case "unfenced":
		fencetest.Run(t, func(t *testing.T) fencetest.Resource {
			p := &prices{shops: make(map[string]*shop)}
			return fencetest.Resource{
				Write: func(_ context.Context, token fencelock.Token, item, price string) error {
					s := p.shop(token.Name())
					s.mu.Lock()
					defer s.mu.Unlock()
					s.price[item] = price
					return nil
				},
				Read: p.get,
			}
		})
		return
	case "no factory":
		fencetest.Run(t, nil)
		return
	}
	run := func(what string) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunFails$", "-test.v")
		cmd.Env = append(os.Environ(), child+"="+what)
		out, err := cmd.CombinedOutput()
		var failed *exec.ExitError
		require.ErrorAs(t, err, &failed, "%s", out)
		return string(out)
	}
	out := run("unfenced")
	assert.Regexp(t, regexp.MustCompile(`(?m)^ +--- FAIL: TestRunFails/StaleRefused `), out)
	assert.Regexp(t, regexp.MustCompile(`(?m)^ +--- FAIL: TestRunFails/AtomicCheck `), out)
	assert.Regexp(t, regexp.MustCompile(`(?m)^ +--- PASS: TestRunFails/NewerPasses `), out)
	assert.Regexp(t, regexp.MustCompile(`(?m)^ +--- SKIP: TestRunFails/MarkSurvivesReopen `), out)
	assert.Contains(t, out, "has no Reopen, so it is not proved that the mark is durable")
	assert.Contains(t, out, `must be refused: a newer token was seen; it passed`)
	assert.Contains(t, out, "without StaleRefused: a late holder overwrites what its successor did")
	assert.NotContains(t, out, "without NewerPasses")
	assert.Contains(t, run("no factory"), "the factory is nil")
}
