package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fencelock/fencelock"
)

// register is one object, guarded by one lock. The object is the token of the
// last writer on a line of its own, and then the data:
//
//	1234.694d8a1c5f2e0a07-9f3c2b1a7e6d5c40-1
//	the data
//
// The mark has to be in the object's content, not in its metadata or in an object
// beside it. One PUT changes one object, so only what is in it changes in one step.
// And what If-Match compares, the ETag, is made of the content: with the mark in
// the metadata a successor that raised it and left the data alone would leave the
// ETag alone, and a PUT of the holder before it would still find its ETag.
type register struct {
	store  *s3.Client
	bucket string
	key    string
	lock   string // the lock that guards the object
}

// version is what a GET returned.
type version struct {
	etag  string // empty: there is no object
	token fencelock.Token
	data  string
}

// get reads the object. No token is needed to read.
func (r *register) get(ctx context.Context) (version, error) {
	resp, err := r.store.GetObject(ctx, &s3.GetObjectInput{Bucket: &r.bucket, Key: &r.key})
	if code(err) == "NoSuchKey" {
		return version{}, nil
	}
	if err != nil {
		return version{}, fmt.Errorf("read %s: %w", r.key, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return version{}, fmt.Errorf("read %s: %w", r.key, err)
	}
	mark, data, ok := strings.Cut(string(body), "\n")
	if !ok {
		return version{}, fmt.Errorf("%s has no token: something that is not fenced wrote it", r.key)
	}
	token, err := fencelock.ParseToken(r.lock, mark)
	if err != nil {
		return version{}, fmt.Errorf("the token in %s: %w", r.key, err)
	}
	return version{etag: aws.ToString(resp.ETag), token: token, data: data}, nil
}

// update replaces the data by what change makes of it, unless token is stale.
// change runs again for each version that somebody else wrote first, and not for its own.
//
// It is the loop for every store that offers no more than a compare-and-swap on
// a version: Consul's ModifyIndex, a condition on an item in DynamoDB.
func (r *register) update(ctx context.Context, token fencelock.Token, change func(string) string) error {
	if err := r.check(fencelock.Token{}, token); err != nil {
		return err
	}
	var sent *string // what the last PUT was to write, if it was refused
	for {
		seen, err := r.get(ctx)
		if err != nil {
			return err
		}
		// A newer token here says that this one is superseded. If a PUT was refused
		// before, it does not say whether that was the second copy of one that had
		// been applied before the newer holder came.
		if err := r.check(seen.token, token); err != nil {
			return err
		}
		if sent != nil && seen.token.Equal(token) && seen.data == *sent {
			return nil // refused because we had written it
		}
		data := change(seen.data)
		err = r.put(ctx, seen, token, data)
		switch code(err) {
		case "PreconditionFailed", "ConditionalRequestConflict":
			// Somebody wrote since. Perhaps we did: a PUT whose answer was lost is
			// sent again by the SDK, and finds what it wrote itself. So this alone
			// says nothing about being stale. Only the mark does: read it again.
			sent = &data
			continue
		}
		return err
	}
}

// claim raises the mark and leaves the data alone. From its return on nothing of
// an earlier holder is applied, so what is read then stays true.
func (r *register) claim(ctx context.Context, token fencelock.Token) error {
	return r.update(ctx, token, func(data string) string { return data })
}

// check is the rule that every fence keeps.
func (r *register) check(highest, token fencelock.Token) error {
	switch {
	case token.IsZero():
		return fencelock.ErrNoToken
	case token.Name() != r.lock:
		return fmt.Errorf("%w: %q, and %s is guarded by %q", fencelock.ErrScope, token.Name(), r.key, r.lock)
	case token.Compare(highest) < 0, token.Compare(highest) == 0 && !token.Equal(highest):
		return &fencelock.StaleError{Scope: r.lock, Presented: token, Highest: highest}
	}
	return nil
}

// put writes the object if it still is as it was seen.
func (r *register) put(ctx context.Context, seen version, token fencelock.Token, data string) error {
	mark, err := token.MarshalText()
	if err != nil {
		return err
	}
	in := &s3.PutObjectInput{
		Bucket: &r.bucket, Key: &r.key,
		Body: bytes.NewReader(append(append(mark, '\n'), data...)),
	}
	if seen.etag == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &seen.etag
	}
	if _, err := r.store.PutObject(ctx, in); err != nil {
		return fmt.Errorf("write %s: %w", r.key, err)
	}
	return nil
}

// clear deletes the data. The object stays, and with it the mark: after a DELETE
// the next PUT would find no mark, whoever sends it.
func (r *register) clear(ctx context.Context, token fencelock.Token) error {
	return r.update(ctx, token, func(string) string { return "" })
}

// code is the store's own name of what went wrong, "" if err is not its answer.
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}
