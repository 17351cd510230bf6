package dns

import (
	"bytes"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// newQuery packs a query; size is that of its OPT record, 0 for none.
func newQuery(t testing.TB, name string, typ dnsmessage.Type, size int) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	err := b.StartQuestions()
	if err == nil {
		err = b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET})
	}
	if err == nil && size > 0 {
		if err = b.StartAdditionals(); err == nil {
			var h dnsmessage.ResourceHeader
			if err = h.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err == nil {
				err = b.OPTResource(h, dnsmessage.OPTResource{})
			}
		}
	}
	msg, packErr := b.Finish()
	if err != nil || packErr != nil {
		t.Fatal(err, packErr)
	}
	return msg
}

// newResponse packs a response to a query with a number of addresses.
func newResponse(t testing.TB, query []byte, code dnsmessage.RCode, addresses int) []byte {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		t.Fatal(err)
	}
	m.Response, m.RecursionAvailable, m.RCode, m.Additionals = true, true, code, nil
	for i := range addresses {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i)}},
		})
	}
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// patch returns a message with some bytes replaced.
func patch(msg []byte, at int, with ...byte) []byte {
	out := bytes.Clone(msg)
	copy(out[at:], with)
	return out
}

func TestParseQuery(t *testing.T) {
	plain := newQuery(t, "Example.com.", dnsmessage.TypeA, 0)
	sized := newQuery(t, "example.com.", dnsmessage.TypeA, 4096)
	for _, tt := range []struct {
		name string
		msg  []byte
		ok   bool
		code rcode
		size int
	}{
		{"plain", plain, true, noError, 512},
		{"with an OPT record", sized, true, noError, 4096},
		{"a small OPT record", newQuery(t, "example.com.", dnsmessage.TypeA, 100), true, noError, 512},
		{"the root", newQuery(t, ".", dnsmessage.TypeNS, 0), true, noError, 512},
		{"update", patch(plain, 2, opUpdate), true, noError, 512},
		{"notify", patch(plain, 2, opNotify), true, noError, 512},
		{"nothing", nil, false, 0, 0},
		{"half a header", plain[:11], false, 0, 0},
		{"a response", patch(plain, 2, 0x81), false, 0, 0},
		{"status", patch(plain, 2, 2<<3), true, notImplemented, 0},
		{"no question", patch(plain, 5, 0), true, formatError, 0},
		{"two questions", patch(plain, 5, 2), true, formatError, 0},
		{"65535 questions", patch(plain, 4, 255, 255), true, formatError, 0},
		{"a header alone", plain[:12], true, formatError, 0},
		{"half a name", plain[:15], true, formatError, 0},
		{"no type", plain[:len(plain)-3], true, formatError, 0},
		{"a pointer", patch(plain, 12, 0xc0, 12), true, formatError, 0},
		{"a label of 64", patch(plain, 12, 64), true, formatError, 0},
		{"a missing record", patch(plain, 11, 1), true, formatError, 0},
		{"65535 records", patch(sized, 10, 255, 255), true, formatError, 0},
		{"half a record", sized[:len(sized)-3], true, formatError, 0},
		{"a zone transfer", newQuery(t, "example.com.", dnsmessage.TypeAXFR, 0), true, refused, 0},
		{"too long", append(bytes.Clone(plain), make([]byte, maxQuery)...), true, formatError, 0},
		{"a long name", newQuery(t, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.", dnsmessage.TypeAAAA, 1232), true, noError, 1232},
	} {
		q, c, ok := parseQuery(tt.msg)
		if ok != tt.ok || c != tt.code || ok && c == noError && q.size != tt.size {
			t.Errorf("%s: %v, code %d, size %d; want %v, %d, %d", tt.name, ok, c, q.size, tt.ok, tt.code, tt.size)
		}
		if !ok {
			continue
		}
		var h dnsmessage.Parser
		head, err := h.Start(q.failure(c))
		if err != nil || head.ID != 7 || !head.Response || head.RCode != dnsmessage.RCode(c) {
			t.Errorf("%s: its failure is %+v (%v)", tt.name, head, err)
		}
	}
}

func TestAnsweredBy(t *testing.T) {
	msg := newQuery(t, "Example.com.", dnsmessage.TypeA, 0)
	q, _, _ := parseQuery(msg)
	answer := newResponse(t, msg, dnsmessage.RCodeSuccess, 1)
	bare := func(code dnsmessage.RCode) []byte {
		out := bytes.Clone(newResponse(t, msg, code, 0)[:headerSize])
		clear(out[4:])
		return out
	}
	update, _, _ := parseQuery(patch(msg, 2, opUpdate))
	for _, tt := range []struct {
		name string
		q    query
		msg  []byte
		want bool
	}{
		{"the response", q, answer, true},
		{"no such name", q, newResponse(t, msg, dnsmessage.RCodeNameError, 0), true},
		{"in another case", q, patch(answer, 13, 'e', 'X'), true},
		{"another id", q, patch(answer, 0, 0, 8), false},
		{"a query", q, msg, false},
		{"another operation", q, patch(answer, 2, 0x81|opNotify), false},
		{"another name", q, patch(answer, 13, 'f'), false},
		{"a name with more labels", q, patch(answer, 12, 3), false},
		{"another type", q, patch(answer, 26, 28), false},
		{"another class", q, patch(answer, 28, 3), false},
		{"a longer name", q, newResponse(t, newQuery(t, "a.example.com.", dnsmessage.TypeA, 0), 0, 1), false},
		{"a shorter name", q, newResponse(t, newQuery(t, "example.co.", dnsmessage.TypeA, 0), 0, 1), false},
		{"two questions", q, patch(answer, 5, 2), false},
		{"nothing", q, nil, false},
		{"half a question", q, answer[:20], false},
		{"format error without a question", q, bare(dnsmessage.RCodeFormatError), true},
		{"refused without a question", q, bare(dnsmessage.RCodeRefused), true},
		{"no such name without a question", q, bare(dnsmessage.RCodeNameError), false},
		{"no error without a question", q, bare(dnsmessage.RCodeSuccess), false},
		{"an update without a question", update, patch(bare(dnsmessage.RCodeSuccess), 2, flagResponse|opUpdate), true},
	} {
		if got := tt.q.answeredBy(tt.msg, 7); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestResponse(t *testing.T) {
	msg := newQuery(t, "example.com.", dnsmessage.TypeA, 0)
	q, _, _ := parseQuery(msg)
	long := patch(newResponse(t, msg, dnsmessage.RCodeSuccess, 100), 0, 9, 9)
	for _, tt := range []struct {
		name      string
		answer    []byte
		overTCP   bool
		truncated bool
		answers   int
	}{
		{"short", newResponse(t, msg, dnsmessage.RCodeSuccess, 3), false, false, 3},
		{"long for a datagram", long, false, true, 0},
		{"long", long, true, false, 100},
		{"truncated by the server", patch(newResponse(t, msg, 0, 0), 2, 0x83), false, true, 0},
	} {
		var got dnsmessage.Message
		if err := got.Unpack(q.response(tt.answer, tt.overTCP)); err != nil {
			t.Fatal(tt.name, err)
		}
		if got.ID != 7 || got.Truncated != tt.truncated || len(got.Answers) != tt.answers || len(got.Questions) != 1 {
			t.Errorf("%s: %+v", tt.name, got.Header)
		}
	}
}

// FuzzMessage: messages of clients and servers cause no panic, a forwarded query has one question
// according to a DNS library, and the package's own responses match their query.
func FuzzMessage(f *testing.F) {
	msg := newQuery(f, "Example.com.", dnsmessage.TypeA, 4096)
	f.Add(msg, newResponse(f, msg, dnsmessage.RCodeSuccess, 2))
	f.Add(msg[:12], msg)
	f.Add(patch(msg, 12, 0xc0, 12), patch(msg, 4, 255, 255, 255, 255, 255, 255, 255, 255))
	f.Fuzz(func(t *testing.T, msg, answer []byte) {
		before := bytes.Clone(msg)
		q, c, ok := parseQuery(msg)
		if !ok {
			return
		}
		failed := q.failure(c)
		if c != noError {
			return
		}
		var p dnsmessage.Parser
		if _, err := p.Start(msg); err != nil {
			t.Fatalf("%x is forwarded: %v", msg, err)
		}
		if all, err := p.AllQuestions(); err == nil && len(all) != 1 {
			t.Fatalf("%x is forwarded with %d questions", msg, len(all))
		}
		if !q.answeredBy(failed, q.id()) {
			t.Fatalf("%x is not a response to %x", failed, msg)
		}
		if q.answeredBy(answer, q.id()) {
			if resp := q.response(answer, false); len(resp) > max(q.size, len(failed)) || !q.answeredBy(resp, q.id()) {
				t.Fatalf("the response %x becomes %x", answer, resp)
			}
		}
		if !bytes.Equal(msg, before) {
			t.Fatal("the message was changed")
		}
	})
}
