package etcdfence

import (
	"bytes"
	"fmt"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// checkOps refuses, before a request is sent, what etcd or the mark cannot take.
func (f *Fence) checkOps(cmps []clientv3.Cmp, then, els []clientv3.Op) error {
	if free := f.maxOps - ownLevels; !fits(cmps, then, els, free) {
		return fmt.Errorf("%w: %d compares, %d operations in Then and %d in Else, what is nested in them added; %d fit",
			ErrTooManyOps, len(cmps), len(then), len(els), free)
	}
	return f.checkWrites(then, els)
}

// fits is how etcd counts: the longest of the three lists of a transaction, and
// what is left is for those nested in it.
func fits(cmps []clientv3.Cmp, then, els []clientv3.Op, free int) bool {
	free -= max(len(cmps), len(then), len(els))
	if free < 0 {
		return false
	}
	for _, ops := range [][]clientv3.Op{then, els} {
		for _, op := range ops {
			if op.IsTxn() {
				if nestedCmps, nestedThen, nestedElse := op.Txn(); !fits(nestedCmps, nestedThen, nestedElse, free) {
					return false
				}
			}
		}
	}
	return true
}

// checkWrites refuses what would write a mark. That includes those of other locks:
// who deletes one lets the superseded holders of another lock in again. Reading is
// harmless.
func (f *Fence) checkWrites(branches ...[]clientv3.Op) error {
	for _, ops := range branches {
		for _, op := range ops {
			switch {
			case op.IsTxn():
				_, then, els := op.Txn()
				if err := f.checkWrites(then, els); err != nil {
					return err
				}
			case op.IsPut(), op.IsDelete():
				if f.overlaps(op.KeyBytes(), op.RangeBytes()) {
					what := "puts"
					if op.IsDelete() {
						what = "deletes"
					}
					return fmt.Errorf("%w: it %s %q (range end %q), and marks are kept under %q",
						ErrMarkOverlap, what, op.KeyBytes(), op.RangeBytes(), f.prefix)
				}
			case !op.IsGet():
				// clientv3 panics on it.
				return fmt.Errorf("%w: an operation that is none: the zero clientv3.Op, or a watch", fencelock.ErrInvalidOption)
			}
		}
	}
	return nil
}

// overlaps reports whether [key, end) has a key in it that starts with the prefix
// of marks. As etcd reads it: without an end it is one key, and an end of one zero
// byte is the end of all keys.
func (f *Fence) overlaps(key, end []byte) bool {
	if len(end) == 0 {
		return bytes.HasPrefix(key, []byte(f.prefix))
	}
	return (string(end) == "\x00" || string(end) > f.prefix) && string(key) < clientv3.GetPrefixRangeEnd(f.prefix)
}
