package tokenreview

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
)

// How long and how many answers are remembered. The API server remembers tokens that it has accepted for
// 10 s, too.
const (
	// acceptedFor is for accepted tokens, but never beyond the token's end; rejectedFor for rejected ones.
	acceptedFor = 10 * time.Second
	rejectedFor = time.Second
	// maxAnswers is how many answers are remembered, maxAnswer how long the texts of each may be, in bytes.
	maxAnswers = 4096
	maxAnswer  = 4 << 10
)

// question identifies a token and audiences, without having the token.
type question [sha256.Size]byte

// ask returns the question for a token and audiences.
func ask(token string, audiences []string) question {
	h := sha256.New()
	for _, part := range append([]string{token}, audiences...) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part))) // a hash does not fail
		h.Write([]byte(part))
	}
	return question(h.Sum(nil))
}

// cache remembers answers. It is not safe for concurrent use.
type cache struct {
	answers map[question]answer
}

// answer is a review that counts until then.
type answer struct {
	authn.Review
	until time.Time
}

// get returns the answer to a question, if it counts at the time now.
func (c *cache) get(q question, now time.Time) (authn.Review, bool) {
	a, ok := c.answers[q]
	if !ok || !now.Before(a.until) {
		delete(c.answers, q)
		return authn.Review{}, false
	}
	return a.Review, true
}

// put remembers an answer that was asked for at the time now; end is the token's, zero if it is not known.
// If there is no room, it is not remembered.
func (c *cache) put(q question, r authn.Review, end, now time.Time) {
	until := now.Add(acceptedFor)
	switch {
	case !r.Authenticated || r.Error != "":
		until = now.Add(rejectedFor)
	case end.IsZero():
		return
	case end.Before(until):
		until = end
	}
	if size(r) > maxAnswer {
		return
	}
	if len(c.answers) >= maxAnswers {
		for old, a := range c.answers {
			if !now.Before(a.until) {
				delete(c.answers, old)
			}
		}
		if len(c.answers) >= maxAnswers {
			return
		}
	}
	if c.answers == nil {
		c.answers = map[question]answer{}
	}
	c.answers[q] = answer{r, until}
}

// size is the number of bytes of the texts of an answer.
func size(r authn.Review) int {
	n := len(r.Error) + len(r.Username) + len(r.Pod) + len(r.Credential)
	for _, list := range [][]string{r.Groups, r.Audiences} {
		for _, text := range list {
			n += len(text)
		}
	}
	return n
}

// endOf returns the exp claim of a token, which is true if the API server has accepted the token; zero if
// there is none.
func endOf(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp *float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp == nil || *claims.Exp < 0 || *claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(*claims.Exp), 0)
}
