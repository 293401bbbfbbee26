package fencelock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxName bounds a lock's name, in bytes, before it is escaped.
const maxName = 1024

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > maxName:
		return fmt.Errorf("%w: it has %d bytes, at most %d", ErrInvalidName, len(name), maxName)
	}
	return nil
}

// queuePrefix is what all keys of a name's queue start with. The name becomes
// one path segment: "a" must not contend with "a/b".
func queuePrefix(prefix, name string) string {
	return prefix + url.PathEscape(name) + "/"
}

func slotKey(queue string, lease clientv3.LeaseID, slot int) []byte {
	key := make([]byte, 0, len(queue)+len("0123456789abcdef-")+3)
	key = strconv.AppendInt(append(key, queue...), int64(lease), 16)
	return strconv.AppendInt(append(key, '-'), int64(slot), 10)
}

// record is the value of a key: what others are shown of its holder. The
// holder id makes it unique, so that a clean-up that knows no creation revision
// can compare the value byte for byte.
type record struct {
	Holder string    `json:"holder"`
	Label  string    `json:"label"`
	Host   string    `json:"host"`
	PID    int       `json:"pid"`
	Since  time.Time `json:"since"`
}

// about is what the records of one Locker have in common, as it stands in them
// between the holder and the time.
type about string

func newAbout(label, host string, pid int) about {
	b, err := json.Marshal(struct {
		Label string `json:"label"`
		Host  string `json:"host"`
		PID   int    `json:"pid"`
	}{label, host, pid})
	if err != nil {
		// Strings and an int: there is nothing in it that could fail.
		panic("fencelock: encoding a record: " + err.Error())
	}
	return about(`",` + string(b[1:len(b)-1]) + `,"since":"`)
}

// record returns the value of a key. A holder id needs no escaping.
func (a about) record(holder string, since time.Time) []byte {
	const before, after = `{"holder":"`, `"}`
	b := make([]byte, 0, len(before)+len(holder)+len(a)+len(time.RFC3339Nano)+len(after))
	b = append(append(append(b, before...), holder...), a...)
	return append(since.UTC().AppendFormat(b, time.RFC3339Nano), after...)
}

func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(host, "?")
}

func defaultLabel() string {
	return hostName() + " pid " + strconv.Itoa(os.Getpid())
}

// Claim is one key in a lock's queue: the holder's, or a waiter's.
type Claim struct {
	// Token is the claim's fencing token; a waiter's is the one it will have
	// once it is granted. Its IsOwner is never true, as for every token that
	// was not acquired here.
	Token Token
	// Label, Host and PID say who it is, in the claimant's own words; empty for
	// a key that another kind of client put there, such as concurrency.Mutex.
	Label string
	Host  string
	PID   int
	// Since is when it joined the queue, by the claimant's clock; zero if
	// unknown.
	Since time.Time
	// Remaining is how long its lease lives if it is not renewed again, as etcd
	// saw it, in whole seconds; zero if unknown.
	Remaining time.Duration
}

// Queue is what etcd's record says of one lock.
type Queue struct {
	Name string
	// Holder is who the record names as the holder, nil if nobody.
	Holder *Claim
	// Waiters are those behind the holder, in the order in which they will be
	// granted the lock.
	Waiters []Claim
}

// claimOf reads a key of the queue of name.
func claimOf(name, queue string, kv *mvccpb.KeyValue) Claim {
	c := Claim{Token: Token{name: name, rev: kv.CreateRevision}}
	var r record
	if json.Unmarshal(kv.Value, &r) == nil && r.Holder != "" && len(r.Holder) <= maxHolder && !strings.ContainsFunc(r.Holder, notHolderChar) {
		c.Token.holder = r.Holder
		c.Label, c.Host, c.PID, c.Since = shown(r.Label), shown(r.Host), r.PID, r.Since
		return c
	}
	// Put there by something else: its key's last part tells it from others,
	// and for concurrency.Mutex that is its lease.
	holder := strings.Map(func(r rune) rune {
		if notHolderChar(r) {
			return '_'
		}
		return r
	}, strings.TrimPrefix(string(kv.Key), queue))
	c.Token.holder = cmp.Or(holder[max(0, len(holder)-maxHolder):], "_")
	return c
}

// shown makes a text that somebody else wrote fit to be shown: it is put into
// errors and logs, and anybody who may write the queue can have written it.
func shown(s string) string {
	if len(s) > maxLabel {
		s = s[:maxLabel]
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
