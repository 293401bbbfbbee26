package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var doctorCommand = command{
	name: "doctor", args: "",
	does: "check the cluster, and say what is wrong and what to do",
	more: `Checks what locks need of the cluster: that its members answer, have a leader and are of a
version without known faults, that there is no alarm, how short a lease can be, how the
members' clocks compare with this machine's, and that no key blocks a queue. With
--fence-highest it checks that new tokens are above a fence's highest mark. It takes a lease
for a moment, and writes nothing else. Exit code 1: something is wrong.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var f format
		f.register(fs)
		highest := fs.Int64("fence-highest", 0, "the highest `revision` that a fence has seen, as in the column or key of its mark")
		return func(ctx context.Context, c *call) error {
			if *highest < 0 || isSet(fs, "fence-highest") && *highest == 0 {
				return usage("doctor: --fence-highest=%d is no token's revision", *highest)
			}
			return doctor(ctx, c, f, *highest)
		}
	},
}

// finding is what one check came to.
type finding struct {
	Level string `json:"level"` // ok, note or problem
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"`
}

const (
	fine    = "ok"
	note    = "note"
	problem = "problem"
)

type examination struct {
	*call
	client *clientv3.Client
	json   bool
	wrong  int
	err    error // of writing
}

func (x *examination) say(level, check, do, format string, args ...any) {
	f := finding{Level: level, Check: check, Text: printable(fmt.Sprintf(format, args...)), Do: do}
	if level == problem {
		x.wrong++
	}
	if x.json {
		x.err = errors.Join(x.err, writeJSON(x.out, f))
		return
	}
	fmt.Fprintf(x.out, "%-8s %-9s %s\n", strings.Replace(level, problem, "PROBLEM", 1), check, f.Text)
	if do != "" {
		fmt.Fprintf(x.out, "%-18s what to do: %s\n", "", do)
	}
}

func doctor(ctx context.Context, c *call, f format, highest int64) error {
	if err := none(c); err != nil {
		return err
	}
	client, err := c.connection.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	x := &examination{call: c, client: client, json: f.json}
	members := x.members(ctx)
	x.clocks(ctx, members)
	revision, err := x.quorum(ctx)
	if err != nil {
		x.say(problem, "quorum", "look for members that are down, and at their logs", "the cluster answers no linearizable read: %v", err)
		if ferr := x.out.Flush(); ferr != nil {
			return ferr
		}
		return c.connection.explain(err)
	}
	x.alarms(ctx, members)
	x.leases(ctx)
	x.marks(revision, highest)
	x.keys(ctx)
	if x.err != nil {
		return x.err
	}
	if x.wrong > 0 {
		return &exit{code: codeNo}
	}
	return nil
}

// bounded is the context of one request.
func (x *examination) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, x.connection.commandTimeout)
}

// member is one member as it was found.
type member struct {
	name   string
	url    string // where it was asked
	status *clientv3.StatusResponse
	err    error
}

// ask asks a member for its state, each at its address, all at once.
func (x *examination) ask(ctx context.Context, all []member) {
	var wg sync.WaitGroup
	for i := range all {
		if all[i].err != nil || all[i].status != nil {
			continue
		}
		wg.Go(func() {
			bounded, cancel := x.bounded(ctx)
			defer cancel()
			all[i].status, all[i].err = x.client.Status(bounded, all[i].url)
		})
	}
	wg.Wait()
}

// members asks the endpoints that were given, and every other member that the cluster
// has at the address that it tells to clients. What answers at an endpoint is not
// asked there: that address need not be one that can be reached from here.
func (x *examination) members(ctx context.Context) []member {
	var all []member
	for _, e := range x.client.Endpoints() {
		all = append(all, member{name: e, url: e})
	}
	x.ask(ctx, all)
	bounded, cancel := x.bounded(ctx)
	list, err := x.client.MemberList(bounded)
	cancel()
	if err != nil {
		x.say(note, "members", "", "the cluster does not say who its members are (%v); asked the endpoints that were given", err)
	} else {
		answered := map[uint64]member{}
		var known []member
		for _, m := range all {
			if m.err == nil {
				answered[m.status.Header.MemberId] = m
			} else {
				x.say(note, "members", "", "nothing answers at endpoint %s: %v", quoted(m.url), m.err)
			}
		}
		for _, m := range list.Members {
			found := answered[m.ID]
			if found.name = m.Name; found.name == "" {
				found.name = strconv.FormatUint(m.ID, 16)
			}
			if found.status == nil && len(m.ClientURLs) == 0 {
				found.err = errors.New("it has not started yet, or tells no address for clients")
			} else if found.status == nil {
				found.url = m.ClientURLs[0]
			}
			known = append(known, found)
		}
		all = known
		x.ask(ctx, all)
	}
	answering := 0
	leaders := map[uint64]bool{}
	for _, m := range all {
		if m.err != nil {
			x.say(problem, "members", "start it, or see why this machine cannot reach it; as long as a majority is up locks work",
				"member %s at %s does not answer: %v", quoted(m.name), quoted(m.url), m.err)
			continue
		}
		answering++
		leaders[m.status.Leader] = true
		if !soundVersion(m.status.Version) {
			x.say(problem, "versions", "upgrade it to 3.5.13, 3.4.31 or later: etcd 3.6 and 3.7 are",
				"member %s runs etcd %s, where a leader that was replaced can revoke live leases, and so take locks from their holders",
				quoted(m.name), m.status.Version)
		}
	}
	level := fine
	if answering == 0 {
		level = problem
	}
	x.say(level, "members", "", "%d of %d answer%s", answering, len(all), versionsOf(all))
	switch {
	case answering == 0:
	case leaders[0]:
		x.say(problem, "leader", "look for members that are down: a majority has to be up and to reach each other", "a member knows of no leader")
	case len(leaders) > 1:
		x.say(note, "leader", "look again in some seconds", "the members name different leaders, as they do during an election")
	default:
		x.say(fine, "leader", "", "all that answer name the same")
	}
	return all
}

func versionsOf(all []member) string {
	seen := map[string]bool{}
	text := ""
	for _, m := range all {
		if m.status != nil && !seen[m.status.Version] {
			seen[m.status.Version] = true
			text += ", " + m.status.Version
		}
	}
	return strings.Replace(text, ", ", "; etcd ", 1)
}

// soundVersion reports whether a version is without the fault that the package's
// documentation names. One that is not understood is taken for a new one.
func soundVersion(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return true
	}
	switch {
	case major != 3:
		return major > 3
	case minor == 4:
		return patch >= 31
	case minor == 5:
		return patch >= 13
	}
	return minor > 5
}

// clockOff is from when on a difference of clocks is worth a word.
const clockOff = 2 * time.Second

// clocks compares the members' clocks with this machine's, by the Date of an answer
// over HTTP: etcd's own protocol tells no time.
func (x *examination) clocks(ctx context.Context, members []member) {
	secure, err := x.connection.tls()
	if err != nil {
		return // it was read before
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: x.connection.commandTimeout}
	compared, off := 0, 0
	for _, m := range members {
		if m.err != nil {
			continue
		}
		least, err := clockOf(ctx, client, m.url, secure)
		if err != nil {
			x.say(note, "clocks", "", "member %s does not tell its time: %v", quoted(m.name), err)
			continue
		}
		if compared++; least.Abs() >= clockOff {
			off++
			x.say(note, "clocks", "synchronise both machines' clocks; no lock depends on it, but the times shown and certificates do",
				"the clock of member %s is at least %s %s this machine's", quoted(m.name), least.Abs().Round(time.Second),
				map[bool]string{true: "ahead of", false: "behind"}[least > 0])
		}
	}
	if compared > off {
		x.say(fine, "clocks", "", "%d of %d within %v of this machine's", compared-off, compared, clockOff)
	}
}

// clockOf returns by how much at least a member's clock is ahead of ours, negative if
// it is behind, 0 if there need be no difference: a Date has no fractions of a second,
// and was taken at some time between question and answer.
func clockOf(ctx context.Context, client *http.Client, endpoint string, secure *tls.Config) (time.Duration, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = map[bool]string{true: "https://", false: "http://"}[secure != nil] + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return 0, err
	}
	u.Path = "/version"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	asked := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	answered := time.Now()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	_ = resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, errors.New("its answer has no date")
	}
	return leastOff(date, asked, answered), nil
}

func leastOff(date, asked, answered time.Time) time.Duration {
	switch {
	case date.After(answered):
		return date.Sub(answered)
	case date.Add(time.Second).Before(asked):
		return date.Add(time.Second).Sub(asked)
	}
	return 0
}

// quorum makes a linearizable read, and returns the revision it was of.
func (x *examination) quorum(ctx context.Context) (int64, error) {
	bounded, cancel := x.bounded(ctx)
	defer cancel()
	resp, err := x.client.Get(bounded, x.connection.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	x.say(fine, "quorum", "", "it answers reads; %d keys under %s, revision %d", resp.Count, quoted(x.connection.prefix), resp.Header.Revision)
	return resp.Header.Revision, nil
}

func (x *examination) alarms(ctx context.Context, members []member) {
	bounded, cancel := x.bounded(ctx)
	defer cancel()
	var raised []string
	resp, err := x.client.AlarmList(bounded)
	if err == nil {
		for _, a := range resp.Alarms {
			raised = append(raised, fmt.Sprintf("%s at member %x", a.Alarm, a.MemberID))
		}
	} else {
		// Asking for them needs root where authentication is on; a member's state
		// has them too.
		for _, m := range members {
			if m.status != nil {
				raised = append(raised, m.status.Errors...)
			}
		}
	}
	for _, a := range raised {
		do := "see what etcd says about it in the member's log"
		switch {
		case strings.Contains(a, "NOSPACE"):
			do = "locks are released but not acquired: compact and defragment, or raise the quota, then etcdctl alarm disarm"
		case strings.Contains(a, "CORRUPT"):
			do = "replace that member's data: its answers, and so its locks, cannot be trusted"
		}
		x.say(problem, "alarms", do, "%s", a)
	}
	if len(raised) == 0 {
		x.say(fine, "alarms", "", "none")
	}
}

// leases takes the shortest lease there is, to see how short that is.
func (x *examination) leases(ctx context.Context) {
	bounded, cancel := x.bounded(ctx)
	resp, err := x.client.Grant(bounded, 1)
	cancel()
	if err != nil {
		do := "without leases no lock can be acquired: see the other findings, and etcd's logs"
		if errors.Is(err, rpctypes.ErrNoSpace) {
			do = "see the alarm"
		}
		x.say(problem, "leases", do, "etcd grants no lease: %v", err)
		return
	}
	// Detached, for the lease is to go in any case; it would by itself after its TTL.
	bounded, cancel = x.bounded(context.WithoutCancel(ctx))
	defer cancel()
	if _, err := x.client.Revoke(bounded, resp.ID); err != nil {
		x.say(note, "leases", "", "the lease of this check was not revoked and goes in %d s: %v", resp.TTL, err)
	}
	x.say(fine, "leases", "", "the least TTL is %d s: with a smaller --ttl a lock stays taken for that long all the same", resp.TTL)
}

// marks compares the tokens to come with a fence's highest mark.
func (x *examination) marks(revision, highest int64) {
	switch {
	case highest == 0:
	case revision < highest:
		x.say(problem, "tokens", "restore again with etcdutl snapshot restore --bump-revision "+
			strconv.FormatInt(highest-revision+1_000_000_000, 10)+" --mark-compacted, or raise the revision with as many writes as are missing",
			"etcd is at revision %d and the fence's mark at %d: every token granted now is refused as stale; was etcd restored, or is it another cluster?",
			revision, highest)
	default:
		x.say(fine, "tokens", "", "the next token is above %d, the mark is %d", revision, highest)
	}
}

// keysPage is how many keys are read at a time; examples how many are named.
const (
	keysPage = 256
	examples = 8
)

// keys looks for keys that block a queue, and for those that no lock could own.
func (x *examination) keys(ctx context.Context) {
	prefix := x.connection.prefix
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	var rev int64
	blocking, stray := 0, 0
	for {
		bounded, cancel := x.bounded(ctx)
		resp, err := x.client.Get(bounded, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithRev(rev))
		cancel()
		if err != nil {
			x.say(problem, "keys", "the user's role needs read on that prefix; else see the other findings",
				"the keys under %s cannot be read: %v", quoted(prefix), err)
			return
		}
		if rev == 0 {
			rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			key := string(kv.Key)
			name, ok := nameOf(prefix, key)
			switch {
			case !ok:
				if stray++; stray <= examples {
					x.say(note, "keys", "if locks of another kind of client are meant to exclude these, name them as url.PathEscape does",
						"key %s is in no lock's queue", quoted(key))
				}
			case kv.Lease == 0:
				if blocking++; blocking <= examples {
					x.say(problem, "keys", "if nobody needs it: etcdctl del "+shellQuoted(key),
						"key %s has no lease, and blocks lock %s until it is deleted", quoted(key), quoted(name))
				}
			}
		}
		if !resp.More {
			break
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	if blocking > examples {
		x.say(problem, "keys", "", "and %d more keys without a lease", blocking-examples)
	}
	if stray > examples {
		x.say(note, "keys", "", "and %d more keys in no lock's queue", stray-examples)
	}
	if blocking == 0 {
		x.say(fine, "keys", "", "none blocks a queue")
	}
}

// shellQuoted is a key as a shell takes it; one with characters that mean something
// to a terminal in the form that bash, zsh and ksh have for that.
func shellQuoted(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f || r > 0x7e }) {
		var b strings.Builder
		b.WriteString("$'")
		for i := range len(key) {
			if c := key[i]; c < ' ' || c > 0x7e || c == '\'' || c == '\\' {
				fmt.Fprintf(&b, `\x%02x`, c)
			} else {
				b.WriteByte(c)
			}
		}
		return b.String() + "'"
	}
	return "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
}
