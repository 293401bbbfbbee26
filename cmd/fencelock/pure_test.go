package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock"
)

// What the program does as a process is tested on real clusters, in
// internal/integration; here is what needs none.

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args              string
		positional, after []string
		o                 string
		fails             bool
	}{
		{args: "", o: "text"},
		{args: "a b", positional: []string{"a", "b"}, o: "text"},
		{args: "-o json a", positional: []string{"a"}, o: "json"},
		{args: "a -o json", positional: []string{"a"}, o: "json"},
		{args: "a --output=json b", positional: []string{"a", "b"}, o: "json"},
		{args: "a -- -o json", positional: []string{"a"}, after: []string{"-o", "json"}, o: "text"},
		{args: "-o json a -- sh -c -- x", positional: []string{"a"}, after: []string{"sh", "-c", "--", "x"}, o: "json"},
		{args: "a --", positional: []string{"a"}, after: []string{}, o: "text"},
		{args: "a -o", fails: true},
		{args: "a -o xml", fails: true},
		{args: "--nope a", fails: true},
	} {
		fs := newFlagSet()
		var f format
		f.register(fs)
		positional, after, err := parse(fs, strings.Fields(c.args))
		if c.fails {
			assert.Error(t, err, c.args)
			continue
		}
		require.NoError(t, err, c.args)
		assert.Equal(t, c.positional, positional, c.args)
		assert.Equal(t, c.after, after, c.args)
		assert.Equal(t, c.o, f.String(), c.args)
	}
}

// A flag before the command and one behind it are the same flag; the last one counts.
func TestEndpointsFromWhere(t *testing.T) {
	for _, c := range []struct{ before, behind, environment, want string }{
		{"", "", "", "127.0.0.1:2379"},
		{"", "", "e:1", "e:1"},
		{"", "b:1", "e:1", "b:1"},
		{"a:1", "", "e:1", "a:1"},
		{"a:1", "b:1", "e:1", "b:1"},
	} {
		t.Setenv("ETCDCTL_ENDPOINTS", c.environment)
		got := ""
		was := commands
		commands = []command{{name: "probe", register: func(*flag.FlagSet) func(context.Context, *call) error {
			return func(_ context.Context, x *call) error { got = x.connection.endpoints; return nil }
		}}}
		args := []string{"probe"}
		if c.before != "" {
			args = append([]string{"--endpoints", c.before}, args...)
		}
		if c.behind != "" {
			args = append(args, "--endpoints", c.behind)
		}
		err := dispatch(t.Context(), args, nil)
		commands = was
		require.NoError(t, err)
		assert.Equal(t, c.want, got, c)
	}
}

func TestQuoted(t *testing.T) {
	for name, want := range map[string]string{
		"invoices/2026-07": "invoices/2026-07",
		"ü%41":             "ü%41",
		"":                 `""`,
		"two words":        `"two words"`,
		`say "x"`:          `"say \"x\""`,
		`back\slash`:       `"back\\slash"`,
		"\x1b[2J":          `"\x1b[2J"`,
		"a\nb\tc\r":        `"a\nb\tc\r"`,
		"\xff":             `"\xff"`,
		"\u202egnp.exe":    `"\u202egnp.exe"`, // turns the text around
		"\u009b2J":         `"\u009b2J"`,      // a CSI in one character
		"a\u00a0b":         `"a\u00a0b"`,      // a space that is none
	} {
		assert.Equal(t, want, quoted(name))
	}
}

func FuzzQuoted(f *testing.F) {
	f.Add("\x1b]0;x\a")
	f.Fuzz(func(t *testing.T, s string) {
		for _, shown := range []string{quoted(s), printable(s), shellQuoted(s)} {
			for _, r := range strings.ReplaceAll(shown, "\n", "") {
				if !unicode.IsPrint(r) {
					t.Fatalf("%q is shown as %q", s, shown)
				}
			}
		}
	})
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{usage("x"), 2},
		{fmt.Errorf("x: %w", fencelock.ErrInvalidOption), 2},
		{fencelock.ErrInvalidName, 2},
		{fencelock.ErrInvalidToken, 2},
		{fencelock.ErrNoToken, 2},
		{&fencelock.HeldError{Name: "x"}, 120},
		{fencelock.ErrNotHeld, 1},
		{&exit{code: 7}, 7},
		{fmt.Errorf("%w: %w", fencelock.ErrUnconfirmed, context.DeadlineExceeded), 124},
		{context.DeadlineExceeded, 122},
		{rpctypes.ErrNoLeader, 122},
		{status.Error(codes.Unavailable, "x"), 122},
		{rpctypes.ErrPermissionDenied, 123},
		{errors.New("x"), 123},
	} {
		assert.Equal(t, c.want, codeOf(c.err), "%v", c.err)
	}
	assert.Empty(t, messageOf(nil))
	assert.Empty(t, messageOf(&exit{code: 7}))
	assert.Equal(t, "fencelock: x", messageOf(errors.New("x")))
	assert.Equal(t, "fencelock: x", messageOf(errors.New("fencelock: x")))
}

// SIGKILL comes in time, and leaves most of the margin to the command; where there is
// no time, or the reason is not known, there is no grace.
func TestGrace(t *testing.T) {
	for _, margin := range []time.Duration{time.Millisecond, 200 * time.Millisecond, 3 * time.Second, time.Minute} {
		for _, reason := range []fencelock.Reason{fencelock.LostExpired, fencelock.LostDenied, fencelock.LostMaxHold} {
			grace := graceAfter(reason, margin)
			assert.GreaterOrEqual(t, grace, margin*3/4, margin)
			assert.Less(t, grace, margin, margin)
			assert.LessOrEqual(t, margin-grace, 500*time.Millisecond, margin)
		}
		for _, reason := range []fencelock.Reason{fencelock.LostDeleted, fencelock.LostRevoked, fencelock.LostSession, fencelock.LostClosed, "of later"} {
			assert.Zero(t, graceAfter(reason, margin), "another may have it")
		}
		assert.LessOrEqual(t, lookEvery(margin), 200*time.Millisecond)
		assert.Positive(t, lookEvery(margin))
	}
}

func TestSoundVersion(t *testing.T) {
	for version, sound := range map[string]bool{
		"3.3.27": false, "3.4.30": false, "3.4.31": true, "3.4.40": true, "3.5.0": false, "3.5.12": false, "3.5.13": true,
		"3.6.0": true, "3.7.3": true, "2.3.8": false, "4.0.0": true, "3.5.12-rc.1": false, "": true, "next": true,
	} {
		assert.Equal(t, sound, soundVersion(version), version)
	}
}

// A date without fractions of a second, taken at some time between question and
// answer, says of a clock only what it must say.
func TestLeastOff(t *testing.T) {
	at := func(seconds float64) time.Time {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
	}
	for _, c := range []struct {
		date            float64
		asked, answered float64
		want            time.Duration
	}{
		{10, 10.2, 10.3, 0},
		{10, 10.999, 11.1, 0},
		{9, 10.0, 10.1, 0},
		{11, 10.2, 11.1, 0},
		{13, 10.2, 10.5, 2500 * time.Millisecond},
		{5, 10.5, 10.6, -4500 * time.Millisecond},
	} {
		assert.Equal(t, c.want, leastOff(at(c.date), at(c.asked), at(c.answered)), c)
	}
}

func TestHelpIsComplete(t *testing.T) {
	var all strings.Builder
	require.NoError(t, help(&all))
	for _, c := range commands {
		assert.Contains(t, all.String(), "  "+c.name+" ")
		fs := newFlagSet()
		c.register(fs)
		own := flagNames(fs)
		(&connection{}).register(fs)
		var one strings.Builder
		require.NoError(t, c.help(&one, fs, own))
		fs.VisitAll(func(f *flag.Flag) { assert.Contains(t, one.String(), "-"+f.Name) })
		for line := range strings.Lines(c.more) {
			assert.LessOrEqual(t, len(line), 98, c.name)
		}
	}
}
