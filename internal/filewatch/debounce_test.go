package filewatch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The script's commands, one a line, each preceded by the time in milliseconds:
//
//	look a1 bX   file a is there with signature 1, b is unknown
//	take a1      a was read
//	again a      a second look at a is wanted
//	hold a       what was read of a is not used before it has been still
//
// and after "look … =" stands what is due, after "take … =" what that says. aR is another
// file in the place of a.
func TestPace(t *testing.T) {
	for name, script := range map[string]string{
		"an old file is due at once": `
			0 look a1 = a`,
		"a new file debounces first": `
			0 look a1 = a
			0 take a1
			10 look a1 b9 =
			39 look a1 b9 =
			40 look a1 b9 = b`,
		"a file that keeps changing is left alone": `
			0 look a1 = a
			0 take a1
			10 look a2 =
			30 look a3 =
			59 look a3 =
			60 look a3 = a
			60 take a3
			61 look a3 =`,
		"changes near each other are taken together": `
			0 look a1 b1 = a b
			0 take a1
			0 take b1
			10 look a2 b1 =
			30 look a2 b2 =
			40 look a2 b2 =
			60 look a2 b2 = a b`,
		"one restless file does not hold the others up": `
			0 look a1 b1 = a b
			0 take a1
			0 take b1
			10 look a2 b2 =
			30 look a2 b3 =
			50 look a2 b4 =
			70 look a2 b5 = a`,
		"a deleted file is due, and again": `
			0 look a1 = a
			0 take a1
			10 look =
			40 look = a
			40 take a0
			40 again a
			79 look =
			80 look = a
			80 take a0
			81 look =`,
		"a file back before the second look": `
			0 look a1 = a
			0 take a1
			10 look =
			40 look = a
			40 take a0
			40 again a
			50 look a2 =
			80 look a2 = a`,
		"unknown for a while": `
			0 look a1 = a
			0 take a1
			10 look aX =
			99 look aX =
			100 look a1 =
			130 look a1 = a`,
		"unknown, then gone": `
			0 look a1 = a
			0 take a1
			10 look aX =
			20 look =
			50 look = a`,
		"rewritten in place": `
			0 look a1 = a
			0 take a1 = still
			10 look a2 =
			40 look a2 = a
			40 take a2 = rewritten
			50 look a3 =
			80 look a3 = a
			80 take a3 = rewritten
			2000 look aR =
			2030 look aR = a
			2030 take aR =
			2040 look =
			2070 look = a
			2070 take a0 =
			2080 look a1 =
			2110 look a1 = a
			2110 take a1 =`,
		"held until it has been still": `
			0 look a1 = a
			0 take a1
			10 look a2 =
			40 look a2 = a
			40 take a2 = rewritten
			40 hold a
			1509 look a2 =
			1510 look a2 = a
			1510 take a2 = rewritten still
			1511 look a2 =`,
		"held, and changed meanwhile": `
			0 look a1 b1 = a b
			0 take a1
			0 take b1
			10 look a2 b1 =
			40 look a2 b1 = a
			40 take a2 = rewritten
			40 hold a
			100 look a3 b1 =
			130 look a3 b1 = a
			130 take a3 = rewritten
			130 hold a
			200 look a3 b2 =
			230 look a3 b2 = b
			230 take b2 = rewritten
			1599 look a3 b2 =
			1600 look a3 b2 = a
			1600 take a3 = rewritten still`,
		"held, and replaced": `
			0 look a1 = a
			0 take a1
			10 look a2 =
			40 look a2 = a
			40 take a2 = rewritten
			40 hold a
			50 look aR =
			80 look aR = a
			80 take aR =
			80 again a
			119 look aR =
			120 look aR = a
			120 take aR =`,
		"changed between the look and the reading": `
			0 look a1 = a
			0 take a1
			10 look a2 =
			40 look a2 = a
			40 take a2
			40 hold a
			1510 look a2 = a
			1510 take a3 = rewritten
			1510 hold a
			3009 look a3 =
			3010 look a3 = a
			3010 take a3 = rewritten still`,
		"due until taken": `
			0 look a1 = a
			5 look a1 = a`,
	} {
		t.Run(name, func(t *testing.T) {
			p := NewDebouncer(30*time.Millisecond, 40*time.Millisecond, 1500*time.Millisecond)
			start := time.Unix(1_000_000, 0)
			sig := func(s string) Sig {
				switch s[1] {
				case '0':
					return Sig{}
				case 'X':
					return Unknown
				case 'R':
					return Sig{ino: 99, size: 1, mtime: start.Add(-time.Hour).UnixNano()}
				}
				m := start.Add(-time.Hour)
				if s[1] == '9' {
					m = start.Add(5 * time.Millisecond)
				}
				return Sig{ino: uint64(s[0]), size: int64(s[1]), mtime: m.UnixNano()}
			}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				line = strings.TrimSpace(line)
				step, want, asks := strings.Cut(line, " =")
				f := strings.Fields(step)
				ms := 0
				fmt.Sscan(f[0], &ms)
				now := start.Add(time.Duration(ms) * time.Millisecond)
				switch f[1] {
				case "take":
					rewritten, still := p.MarkRead(f[2][:1], sig(f[2]), now)
					if got := word(rewritten, "rewritten ") + word(still, "still"); asks && strings.TrimSpace(got) != strings.TrimSpace(want) {
						t.Fatalf("%s: got %q", line, got)
					}
				case "again":
					p.Recheck(f[2], now)
				case "hold":
					p.Hold(f[2], now)
				case "look":
					seen := map[string]Sig{}
					for _, s := range f[2:] {
						seen[s[:1]] = sig(s)
					}
					if got := strings.Join(p.Observe(now, seen), " "); got != strings.TrimSpace(want) {
						t.Fatalf("%s: got %q", line, got)
					}
				}
			}
		})
	}
}

func word(say bool, s string) string {
	if say {
		return s
	}
	return ""
}

func TestPaceNext(t *testing.T) {
	p := NewDebouncer(30*time.Millisecond, 40*time.Millisecond, 1500*time.Millisecond)
	start := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	if n := p.Next(start); !n.IsZero() {
		t.Errorf("nothing pending: next %v", n)
	}
	fresh := Sig{ino: 1, mtime: start.UnixNano()}
	p.Observe(at(0), map[string]Sig{"a": fresh})
	if n := p.Next(at(0)); n != at(30) || p.Stable() {
		t.Errorf("settling: next %v, debounced %v", n.Sub(start), p.Stable())
	}
	p.MarkRead("a", fresh, at(30))
	p.Recheck("a", at(30))
	if n := p.Next(at(30)); n != at(70) || !p.Stable() {
		t.Errorf("second look: next %v, debounced %v", n.Sub(start), p.Stable())
	}
}
