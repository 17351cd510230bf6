package authn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Bounds of a Ledger.
const (
	// maxUsed is how many tokens are remembered, those that have ended left out: with it a ledger is below 1 MiB, which
	// is the limit of an object of Kubernetes.
	maxUsed = 2048
	// MaxLedger is the greatest size of an encoded Ledger in bytes.
	MaxLedger = 1 << 20
	// retryFor is how long after its first use a key may use a token again: the answer to the first request may have been lost.
	retryFor = 10 * time.Minute
)

// Use is the use of a join token by a key.
type Use struct {
	// Token and Key are hashes, so that whoever reads the ledger learns no credential.
	Token, Key string
	// Uses is how many keys may use the token; Until is when it ends.
	Uses  int
	Until time.Time
}

// Errors of Ledger.Use.
var (
	errUsedUp = errors.New("used up")
	errFull   = errors.New("too many join tokens are in use")
)

// Ledger says which join tokens were used, and by which keys. The zero value is empty. Its methods change nothing: they return
// another ledger.
type Ledger struct {
	// Tokens are sorted by nothing; the newest is last.
	Tokens []usedToken `json:"tokens,omitempty"`
}

// usedToken is a token that was used.
type usedToken struct {
	Token string    `json:"token"`
	Until time.Time `json:"until"`
	By    []usedBy  `json:"by"`
}

// usedBy is a key that has used a token.
type usedBy struct {
	Key string    `json:"key"`
	At  time.Time `json:"at"`
}

// Use returns the ledger with a use at the time now, without tokens that have ended. A key may repeat its use for 10 minutes; then
// the ledger is returned as it is, and changed is false. The errors wrap errUsedUp or errFull.
func (l Ledger) Use(u Use, now time.Time) (next Ledger, changed bool, err error) {
	i := slices.IndexFunc(l.Tokens, func(t usedToken) bool { return t.Token == u.Token })
	if i >= 0 {
		t := l.Tokens[i]
		if k := slices.IndexFunc(t.By, func(b usedBy) bool { return b.Key == u.Key }); k >= 0 {
			if at := t.By[k].At; now.After(at.Add(retryFor)) {
				return l, false, fmt.Errorf("%w: by this machine, at %s, more than %s ago", errUsedUp, formatTime(at), retryFor)
			}
			return l, false, nil
		}
		if n := len(t.By); n >= u.Uses {
			return l, false, fmt.Errorf("%w: %d of %d, last by another machine at %s", errUsedUp, n, u.Uses, formatTime(t.By[n-1].At))
		}
	}
	for k, t := range l.Tokens {
		if k != i && now.Before(t.Until) {
			next.Tokens = append(next.Tokens, t)
		}
	}
	t := usedToken{Token: u.Token, Until: u.Until}
	if i >= 0 {
		t.By = slices.Clone(l.Tokens[i].By)
	}
	t.By = append(t.By, usedBy{Key: u.Key, At: now.UTC().Truncate(time.Second)})
	next.Tokens = append(next.Tokens, t)
	keys := 0
	for _, t := range next.Tokens {
		keys += len(t.By)
	}
	if len(next.Tokens)+keys > 2*maxUsed {
		return l, false, fmt.Errorf("%w: %d, by %d machines", errFull, len(next.Tokens), keys)
	}
	return next, true, nil
}

// Encode returns the ledger as JSON of at most MaxLedger bytes.
func (l Ledger) Encode() ([]byte, error) {
	text, err := json.Marshal(l)
	if err == nil && len(text) > MaxLedger {
		err = fmt.Errorf("%d bytes, want at most %d", len(text), MaxLedger)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the used join tokens: %w", err)
	}
	return text, nil
}

// DecodeLedger reads what Encode returns; empty text is an empty ledger. A ledger that cannot be read whole is an error: a token
// that is missing in it could be used again.
func DecodeLedger(text []byte) (Ledger, error) {
	var l Ledger
	if len(text) == 0 {
		return l, nil
	}
	if len(text) > MaxLedger {
		return l, fmt.Errorf("decode the used join tokens: %d bytes, want at most %d", len(text), MaxLedger)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&l)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("text behind the end")
		}
	}
	for _, t := range l.Tokens {
		if err == nil && (t.Token == "" || t.Until.IsZero() || len(t.By) == 0) {
			err = errors.New("an entry without a token, an end or a key")
		}
	}
	if err != nil {
		return Ledger{}, fmt.Errorf("decode the used join tokens: %w", err)
	}
	return l, nil
}
