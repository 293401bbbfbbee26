package etcdfence

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A mark is the value of a key of its own: "<revision>.<holder>", the token's own
// text with the revision filled up with zeros to 19 digits, which is as many as the
// largest int64 has. etcd compares values as strings of bytes, and in this form that
// is the order of the numbers. Eight bytes, big endian, would be shorter; nobody
// could read them with etcdctl.
const revisionDigits = 19

func padded(revision int64) string { return fmt.Sprintf("%0*d", revisionDigits, revision) }

func markValue(token fencelock.Token) string { return padded(token.Revision()) + "." + token.Holder() }

// parseMark is the other direction; false for what markValue does not write.
func parseMark(name, value string) (fencelock.Token, bool) {
	revision, holder, ok := strings.Cut(value, ".")
	if !ok || len(revision) != revisionDigits {
		return fencelock.Token{}, false
	}
	token, err := fencelock.ParseToken(name, strings.TrimLeft(revision, "0")+"."+holder)
	return token, err == nil
}

// markKey escapes the name as the root package does in a lock's key, so that people
// find both by one text.
func (f *Fence) markKey(name string) string { return f.prefix + url.PathEscape(name) }

// guarded is the whole request: the check, the new mark and the user's transaction.
//
//	if mark < padded(1)                             no mark of ours: damaged
//	    get mark
//	else if mark > padded(rev-1)"/" && mark != own  the token is stale
//	    get mark
//	else
//	    put mark = own
//	    the user's transaction
//
// The rule is a choice of three: there is no mark, it is lower, or it is this token.
// Compares of a transaction are ANDed, so it is asked the other way round, what
// refuses is what holds together; and a compare of the value of a key that does not
// exist is false, so an absent mark passes. '/' is the byte after '.': above
// padded(rev-1)"/" is every mark of rev and more, none of rev-1.
//
// Rejected: reading the mark and comparing its ModRevision, which is a round trip
// more, and a loop in which a writer can lose to others for ever.
func (f *Fence) guarded(token fencelock.Token, user clientv3.Op) (unreadable clientv3.Cmp, get, check clientv3.Op) {
	key, own := f.markKey(token.Name()), markValue(token)
	mark := clientv3.Value(key)
	get = clientv3.OpGet(key)
	check = clientv3.OpTxn(
		[]clientv3.Cmp{
			clientv3.Compare(mark, ">", padded(token.Revision()-1)+"/"),
			clientv3.Compare(mark, "!=", own),
		},
		[]clientv3.Op{get},
		// Without a lease: a mark that goes away lets superseded holders in again.
		[]clientv3.Op{clientv3.OpPut(key, own), user},
	)
	return clientv3.Compare(mark, "<", padded(1)), get, check
}

// ownLevels is what the levels around the user's transaction take of the server's
// limit of operations: the outer one 1, the check 2.
const ownLevels = 1 + 2

// outcome reads the answer to the request of guarded: what the user's transaction
// came to, or the mark that token was refused for.
func outcome(top *clientv3.TxnResponse) (applied *clientv3.TxnResponse, mark string, err error) {
	if len(top.Responses) == 1 {
		if top.Succeeded {
			if kvs := top.Responses[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
				return nil, string(kvs[0].Value), nil
			}
		}
		check := top.Responses[0].GetResponseTxn()
		switch got := check.GetResponses(); {
		case check.GetSucceeded() && len(got) == 1:
			if kvs := got[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
				return nil, string(kvs[0].Value), nil
			}
		case len(got) == 2:
			if user := got[1].GetResponseTxn(); user != nil {
				user.Header = top.Header // etcd leaves those of nested ones empty
				return (*clientv3.TxnResponse)(user), "", nil
			}
		}
	}
	return nil, "", fmt.Errorf("%w: the answer is not one that etcd gives to this request", ErrUnknownOutcome)
}
