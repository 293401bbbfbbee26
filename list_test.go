package fencelock

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listed collects a listing, and the error it ended with.
func listed(ctx context.Context, l *Locker) (queues []Queue, err error) {
	for q, e := range l.List(ctx) {
		if e != nil {
			err = e
			continue // if anything came behind it, the caller would see it
		}
		queues = append(queues, q)
	}
	return queues, err
}

func namesOf(queues []Queue) []string {
	names := []string{}
	for _, q := range queues {
		names = append(names, q.Name)
	}
	return names
}

func TestListIsWhatInspectSays(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		queues, err := listed(t.Context(), locker)
		require.NoError(t, err)
		assert.Empty(t, queues)

		names := []string{"a", "a/b", "ab", "a b", "ü", "\xff\x00\x1b", "%41", "A", ".."}
		for _, name := range names {
			mustAcquire(t, locker, name)
		}
		for _, key := range []string{"3", "2", "1"} { // the order of the keys is not the queue's
			mustPut(t, l, "fencelock/a/"+key, clientv3.WithLease(mustGrant(t, l, 60)))
		}
		waiter := newLocker(t, e.dial(t), WithLabel("a waiter"))
		waits := acquireLater(t.Context(), waiter, "a")
		require.False(t, waits.isDone())

		queues, err = listed(t.Context(), locker)
		require.NoError(t, err)
		slices.SortFunc(names, func(a, b string) int {
			return slices.Compare([]byte(url.PathEscape(a)+"/"), []byte(url.PathEscape(b)+"/"))
		})
		require.Equal(t, names, namesOf(queues))
		for _, q := range queues {
			inspected, err := locker.Inspect(t.Context(), q.Name)
			require.NoError(t, err)
			assert.Equal(t, inspected, q)
		}
		assert.Len(t, queues[slices.Index(names, "a")].Waiters, 4)
		require.NoError(t, waiter.Close())
		waits.wait(t)
	})
}

// What no Locker could ever contend for is not shown as if it were a lock.
func TestListPassesOver(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		for _, key := range []string{
			"fencelock/loose",   // below no name
			"fencelock//1-0",    // an empty name
			"fencelock/%zz/1-0", // no escape
			"fencelock/%61/1-0", // "a", which is never escaped so
			"fencelock/x y/1-0", // a Mutex's; ours is x%20y
			"fencelock/%2f/1-0", // "/", in lower case
			"fencelock0/n/1-0",  // behind the prefix
			"fencelock.d/n/1-0", // before it
			"fencelock/" + url.PathEscape(string(make([]byte, 1025))) + "/1-0",
		} {
			mustPut(t, l, key)
		}
		rev := mustPut(t, l, "fencelock/stray/1/2")
		queues, err := listed(t.Context(), newLocker(t, l))
		require.NoError(t, err)
		// One without a lease does block its lock, and is shown.
		require.Equal(t, []string{"stray"}, namesOf(queues))
		assert.Equal(t, rev, queues[0].Holder.Token.rev)
		assert.Zero(t, queues[0].Holder.Remaining)
	})
}

// A listing over many pages is of one revision, whatever happens meanwhile, and asks
// for no more keys at a time than it says.
func TestListPagesAtOneRevision(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		const locks = 3 * listPage
		var want []string
		for i := range locks {
			name := fmt.Sprintf("n%04d", i)
			want = append(want, name)
			mustPut(t, l, "fencelock/"+name+"/1")
			if i == listPage-1 { // a queue that goes on in the next page
				mustPut(t, l, "fencelock/"+name+"/2")
			}
		}
		locker := newLocker(t, l)
		var got []Queue
		for q, err := range locker.List(t.Context()) {
			require.NoError(t, err)
			if len(got) == 0 { // at the first one: everything else changes
				_, err := l.client.Delete(t.Context(), "fencelock/n", clientv3.WithPrefix())
				require.NoError(t, err)
				mustPut(t, l, "fencelock/n9999/1")
			}
			got = append(got, q)
		}
		require.Equal(t, want, namesOf(got))
		assert.Len(t, got[listPage-1].Waiters, 1)
		reads := l.requests(fakeGet)
		require.Len(t, reads, locks/listPage+1)
		for i, r := range reads {
			read := r.req.(*pb.RangeRequest)
			assert.EqualValues(t, listPage, read.Limit)
			assert.Equal(t, i > 0, read.Revision > 0)
		}
		queues, err := listed(t.Context(), locker)
		require.NoError(t, err)
		assert.Equal(t, []string{"n9999"}, namesOf(queues), "the next one sees what is")
	})
}

func TestListStopsWhenTheCallerDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		for i := range 2 * listPage {
			mustPut(t, l, fmt.Sprintf("fencelock/n%04d/1", i))
		}
		list := newLocker(t, l).List(t.Context())
		assert.Empty(t, l.requests(fakeGet), "nothing is sent before the range")
		for range list {
			break
		}
		assert.Len(t, l.requests(fakeGet), 1)
	})
}

// Each lease is asked for once in a page, and none of them twice at a time.
func TestListAsksForEachLeaseOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		for i := range 20 {
			mustAcquire(t, locker, fmt.Sprint("n", i))
		}
		sent := len(l.requests(fakeTTL))
		queues, err := listed(t.Context(), locker)
		require.NoError(t, err)
		assert.Len(t, l.requests(fakeTTL), sent+1)
		for _, q := range queues {
			assert.Equal(t, defaultTTL, q.Holder.Remaining)
		}
	})
}

// compactDuring lists, and compacts the listing's revision away at the first queue.
func compactDuring(t *testing.T, l *fakeLink, list func(func(Queue, error) bool)) (queues []Queue, err error) {
	for q, e := range list {
		if e != nil {
			err = e
			continue
		}
		if len(queues) == 0 {
			mustPut(t, l, "fencelock/later/1")
			_, err := l.client.Compact(t.Context(), mustPut(t, l, "fencelock/later/1"))
			require.NoError(t, err)
		}
		queues = append(queues, q)
	}
	return queues, err
}

func TestListCompactedMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		for i := range listPage + 1 {
			mustPut(t, l, fmt.Sprintf("fencelock/n%04d/1", i))
		}
		queues, err := compactDuring(t, l, newLocker(t, l).List(t.Context()))
		requireIs(t, err, rpctypes.ErrCompacted)
		assert.ErrorContains(t, err, "list again")
		// The last of the first page may have had more keys in the second.
		assert.Len(t, queues, listPage-1)
	})
}

func TestListErrors(t *testing.T) {
	for name, c := range map[string]struct {
		ctx   func(t *testing.T) context.Context
		fault func(string, any) fault
		is    []error
		says  string
		took  time.Duration
	}{
		"no context": {
			ctx: func(*testing.T) context.Context { return nil },
			is:  []error{ErrInvalidOption},
		},
		"a context that has ended": {
			ctx: func(t *testing.T) context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			},
			is: []error{context.Canceled},
		},
		"no answer": {
			ctx:   func(t *testing.T) context.Context { return within(t, 700*time.Millisecond) },
			fault: only(fakeGet, fault{loseReply: true}),
			is:    []error{context.DeadlineExceeded},
			took:  700 * time.Millisecond,
		},
		"no answer to the second page": {
			ctx:   func(t *testing.T) context.Context { return within(t, 700*time.Millisecond) },
			fault: ofKind(fakeGet).fates(fault{}, fault{loseRequest: true}),
			is:    []error{context.DeadlineExceeded},
			took:  700 * time.Millisecond,
		},
		"denied": {
			ctx:   func(t *testing.T) context.Context { return t.Context() },
			fault: only(fakeGet, fault{err: rpctypes.ErrGRPCPermissionDenied}),
			is:    []error{rpctypes.ErrPermissionDenied},
			says:  `"fencelock/"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				for i := range listPage + 1 {
					mustPut(t, l, fmt.Sprintf("fencelock/n%04d/1", i))
				}
				locker := newLocker(t, l)
				l.intercept(c.fault)
				start := time.Now()
				_, err := listed(c.ctx(t), locker)
				requireIs(t, err, c.is...)
				assert.ErrorContains(t, err, "fencelock: ")
				assert.ErrorContains(t, err, c.says)
				assert.Equal(t, c.took, time.Since(start))
				l.intercept(nil)
			})
		})
	}
}

// A Locker that is closed, or a context that ends, under a slow caller ends the
// listing at its next step.
func TestListEndsBetweenQueues(t *testing.T) {
	for name, end := range map[string]func(*Locker, context.CancelFunc) error{
		"closed": func(l *Locker, _ context.CancelFunc) error {
			_ = l.Close()
			return ErrClosed
		},
		"cancelled": func(_ *Locker, cancel context.CancelFunc) error {
			cancel()
			return context.Canceled
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				mustPut(t, l, "fencelock/a/1")
				mustPut(t, l, "fencelock/b/1")
				locker := newLocker(t, l)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var want, got error
				queues := 0
				for _, err := range locker.List(ctx) {
					if err != nil {
						got = err
						continue
					}
					queues++
					want = end(locker, cancel)
				}
				requireIs(t, got, want)
				assert.Equal(t, 1, queues)
			})
		})
	}
}
