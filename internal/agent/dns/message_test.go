package dns

import (
	"bytes"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// ask packs a question as an application's resolver does; size is what its OPT record offers, 0 for
// none.
func ask(t testing.TB, name string, typ dnsmessage.Type, size int) []byte {
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

// reply packs an answer to a question with so many addresses.
func reply(t testing.TB, question []byte, code dnsmessage.RCode, addresses int) []byte {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
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

// changed is a message with bytes put in the place of others.
func changed(msg []byte, at int, with ...byte) []byte {
	out := bytes.Clone(msg)
	copy(out[at:], with)
	return out
}

func TestReadQuery(t *testing.T) {
	plain := ask(t, "Example.com.", dnsmessage.TypeA, 0)
	sized := ask(t, "example.com.", dnsmessage.TypeA, 4096)
	for _, tt := range []struct {
		name string
		msg  []byte
		ok   bool
		code code
		size int
	}{
		{"plain", plain, true, good, 512},
		{"with an OPT record", sized, true, good, 4096},
		{"a small OPT record", ask(t, "example.com.", dnsmessage.TypeA, 100), true, good, 512},
		{"the root", ask(t, ".", dnsmessage.TypeNS, 0), true, good, 512},
		{"update", changed(plain, 2, opUpdate), true, good, 512},
		{"notify", changed(plain, 2, opNotify), true, good, 512},
		{"nothing", nil, false, 0, 0},
		{"half a header", plain[:11], false, 0, 0},
		{"an answer", changed(plain, 2, 0x81), false, 0, 0},
		{"status", changed(plain, 2, 2<<3), true, notImplemented, 0},
		{"no question", changed(plain, 5, 0), true, formatError, 0},
		{"two questions", changed(plain, 5, 2), true, formatError, 0},
		{"65535 questions", changed(plain, 4, 255, 255), true, formatError, 0},
		{"a header alone", plain[:12], true, formatError, 0},
		{"half a name", plain[:15], true, formatError, 0},
		{"no type", plain[:len(plain)-3], true, formatError, 0},
		{"a pointer", changed(plain, 12, 0xc0, 12), true, formatError, 0},
		{"a label of 64", changed(plain, 12, 64), true, formatError, 0},
		{"a record that is not there", changed(plain, 11, 1), true, formatError, 0},
		{"65535 records", changed(sized, 10, 255, 255), true, formatError, 0},
		{"half a record", sized[:len(sized)-3], true, formatError, 0},
		{"a zone transfer", ask(t, "example.com.", dnsmessage.TypeAXFR, 0), true, refused, 0},
		{"too long", append(bytes.Clone(plain), make([]byte, maxQuery)...), true, formatError, 0},
		{"a long name", ask(t, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.", dnsmessage.TypeAAAA, 1232), true, good, 1232},
	} {
		q, c, ok := readQuery(tt.msg)
		if ok != tt.ok || c != tt.code || ok && c == good && q.size != tt.size {
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

func TestAnswers(t *testing.T) {
	msg := ask(t, "Example.com.", dnsmessage.TypeA, 0)
	q, _, _ := readQuery(msg)
	answer := reply(t, msg, dnsmessage.RCodeSuccess, 1)
	bare := func(code dnsmessage.RCode) []byte {
		out := bytes.Clone(reply(t, msg, code, 0)[:headerSize])
		clear(out[4:])
		return out
	}
	update, _, _ := readQuery(changed(msg, 2, opUpdate))
	for _, tt := range []struct {
		name string
		q    query
		msg  []byte
		want bool
	}{
		{"the answer", q, answer, true},
		{"no such name", q, reply(t, msg, dnsmessage.RCodeNameError, 0), true},
		{"in other letters", q, changed(answer, 13, 'e', 'X'), true},
		{"another id", q, changed(answer, 0, 0, 8), false},
		{"a question", q, msg, false},
		{"another operation", q, changed(answer, 2, 0x81|opNotify), false},
		{"another name", q, changed(answer, 13, 'f'), false},
		{"a name with more labels", q, changed(answer, 12, 3), false},
		{"another type", q, changed(answer, 26, 28), false},
		{"another class", q, changed(answer, 28, 3), false},
		{"a longer name", q, reply(t, ask(t, "a.example.com.", dnsmessage.TypeA, 0), 0, 1), false},
		{"a shorter name", q, reply(t, ask(t, "example.co.", dnsmessage.TypeA, 0), 0, 1), false},
		{"two questions", q, changed(answer, 5, 2), false},
		{"nothing", q, nil, false},
		{"half a question", q, answer[:20], false},
		{"not understood", q, bare(dnsmessage.RCodeFormatError), true},
		{"not wanted", q, bare(dnsmessage.RCodeRefused), true},
		{"no such name, but which", q, bare(dnsmessage.RCodeNameError), false},
		{"good, but what", q, bare(dnsmessage.RCodeSuccess), false},
		{"an update is done", update, changed(bare(dnsmessage.RCodeSuccess), 2, flagResponse|opUpdate), true},
	} {
		if got := tt.q.answers(tt.msg, 7); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestBack(t *testing.T) {
	msg := ask(t, "example.com.", dnsmessage.TypeA, 0)
	q, _, _ := readQuery(msg)
	long := changed(reply(t, msg, dnsmessage.RCodeSuccess, 100), 0, 9, 9)
	for _, tt := range []struct {
		name      string
		answer    []byte
		overTCP   bool
		truncated bool
		answers   int
	}{
		{"short", reply(t, msg, dnsmessage.RCodeSuccess, 3), false, false, 3},
		{"long for a datagram", long, false, true, 0},
		{"long", long, true, false, 100},
		{"truncated by the server", changed(reply(t, msg, 0, 0), 2, 0x83), false, true, 0},
	} {
		var got dnsmessage.Message
		if err := got.Unpack(q.back(tt.answer, tt.overTCP)); err != nil {
			t.Fatal(tt.name, err)
		}
		if got.ID != 7 || got.Truncated != tt.truncated || len(got.Answers) != tt.answers || len(got.Questions) != 1 {
			t.Errorf("%s: %+v", tt.name, got.Header)
		}
	}
}

// FuzzMessage: no bytes of an asker or of a server do harm, what is passed on is what a library
// takes for one question, and its own answer is an answer to it.
func FuzzMessage(f *testing.F) {
	msg := ask(f, "Example.com.", dnsmessage.TypeA, 4096)
	f.Add(msg, reply(f, msg, dnsmessage.RCodeSuccess, 2))
	f.Add(msg[:12], msg)
	f.Add(changed(msg, 12, 0xc0, 12), changed(msg, 4, 255, 255, 255, 255, 255, 255, 255, 255))
	f.Fuzz(func(t *testing.T, msg, answer []byte) {
		before := bytes.Clone(msg)
		q, c, ok := readQuery(msg)
		if !ok {
			return
		}
		failed := q.failure(c)
		if c != good {
			return
		}
		var p dnsmessage.Parser
		if _, err := p.Start(msg); err != nil {
			t.Fatalf("%x is passed on: %v", msg, err)
		}
		if all, err := p.AllQuestions(); err == nil && len(all) != 1 {
			t.Fatalf("%x is passed on with %d questions", msg, len(all))
		}
		if !q.answers(failed, q.id()) {
			t.Fatalf("%x does not answer %x", failed, msg)
		}
		if q.answers(answer, q.id()) {
			if back := q.back(answer, false); len(back) > max(q.size, len(failed)) || !q.answers(back, q.id()) {
				t.Fatalf("%x is passed back as %x", answer, back)
			}
		}
		if !bytes.Equal(msg, before) {
			t.Fatal("the message was changed")
		}
	})
}
