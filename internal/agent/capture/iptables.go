package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// program is one iptables of one version of IP.
type program struct {
	// name is what its files begin with, such as ip6tables-nft; dir is where they are.
	name, dir string
	// variant is legacy or nft; version as it says itself.
	variant, version string
	// lock is the file that changes are made under; empty for its own choice.
	lock string
}

// String is the program for people.
func (p program) String() string { return fmt.Sprintf("%s %s (%s)", p.name, p.version, p.variant) }

// lockWait is how long a change waits for another program's. [agent I48]
const lockWait = 30 * time.Second

// lockFile is where all iptables of a file system take turns. lockOfNamespace is a file of the
// program's own network namespace, which is all that it acts on: a lock for one Pod.
const (
	lockFile        = "/run/xtables.lock"
	lockOfNamespace = "/proc/self/ns/net"
)

// shelf is where the programs are; it asks each for its version once.
type shelf struct {
	o    BackendOptions
	seen map[string]found
}

type found struct {
	program
	err error
}

func newShelf(o BackendOptions) *shelf { return &shelf{o, map[string]found{}} }

// find looks for a program in the list of directories.
func (s *shelf) find(name string) (program, error) {
	f, ok := s.seen[name]
	if !ok {
		f.program, f.err = s.look(name)
		s.seen[name] = f
	}
	return f.program, f.err
}

func (s *shelf) look(name string) (program, error) {
	for dir := range strings.SplitSeq(s.o.Path, ":") {
		if dir == "" || !complete(dir, name) {
			continue
		}
		p := program{name: name, dir: dir}
		out, err := p.run("", "", "--version")
		if err != nil {
			return program{}, err
		}
		p.version, p.variant = parseVersion(out)
		return p.withLock(s.o.PodLock), nil
	}
	return program{}, fmt.Errorf("there is no program %s with its -save and -restore", name)
}

func complete(dir, name string) bool {
	for _, file := range []string{name, name + "-save", name + "-restore"} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionForm = regexp.MustCompile(`v([0-9][0-9.]*)\s*(?:\(([a-z_ ]+)\))?`)

// parseVersion reads "iptables v1.8.9 (nf_tables)"; those before 1.8 are legacy without a word.
func parseVersion(out string) (version, variant string) {
	m := versionForm.FindStringSubmatch(out)
	if m == nil {
		return "of an unknown version", "legacy"
	}
	if m[2] == "nf_tables" {
		return m[1], "nft"
	}
	return m[1], "legacy"
}

// waits says whether its restore takes --wait: legacy ones from 1.6.2. The other variant has no lock.
func (p program) waits() bool {
	var n [3]int
	for i, part := range strings.SplitN(p.version, ".", 3) {
		n[i], _ = strconv.Atoi(part)
	}
	return p.variant == "legacy" && (n[0] > 1 || n[0] == 1 && (n[1] > 6 || n[1] == 6 && n[2] >= 2))
}

// save reads all tables.
func (p program) save() (saved, error) {
	out, err := p.run("-save", "")
	if err != nil {
		return nil, err
	}
	s, err := parseSaved(out)
	if err != nil {
		return nil, fmt.Errorf("read the output of %s-save: %w", p.name, err)
	}
	return s, nil
}

// restore applies a text, each of its tables at once, and changes nothing that it doesn't name.
func (p program) restore(text string) error {
	if text == "" {
		return nil
	}
	args := []string{"--noflush"}
	if p.waits() {
		args = append(args, fmt.Sprintf("--wait=%d", int(lockWait.Seconds())))
	}
	_, err := p.run("-restore", text, args...)
	return err
}

// works says whether the kernel has what the program needs. The nft variant needs no table for it.
func (p program) works() error {
	if p.variant == "nft" {
		_, err := p.run("-save", "", "-t", "nat")
		return err
	}
	args := []string{"-t", "nat", "-S"}
	if p.waits() {
		args = append(args, "-w", strconv.Itoa(int(lockWait.Seconds())))
	}
	_, err := p.run("", "", args...)
	return err
}

// hasLegacy says whether the calling thread's network namespace has any legacy table. The program
// would make one by asking.
func hasLegacy(ipv6 bool) bool {
	name := map[bool]string{false: "ip_tables_names", true: "ip6_tables_names"}[ipv6]
	names, err := os.ReadFile("/proc/thread-self/net/" + name)
	return err == nil && len(names) > 0
}

// run runs one of the program's files in the calling thread's network namespace.
func (p program) run(suffix, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, p.name+suffix), args...)
	cmd.Env = []string{"PATH=" + p.dir, "LC_ALL=C"}
	if p.lock != "" {
		cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+p.lock)
	}
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(append([]string{p.name + suffix}, args...), " "),
			p.explain(err, strings.Join(strings.Fields(complaint.String()), " ")))
	}
	return out.String(), nil
}

// withLock chooses the lock: the Pod's own where it is asked for, or where the common one can't be
// made, as on a file system that is read-only.
func (p program) withLock(own bool) program {
	if p.variant != "legacy" {
		return p
	}
	f, err := os.OpenFile(lockFile, os.O_RDONLY|os.O_CREATE, 0o600)
	if err == nil {
		f.Close()
	}
	if own || err != nil {
		p.lock = lockOfNamespace
	}
	return p
}

// family is the version of IP's prefix of programs.
func family(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
}

// detect chooses the program of one version of IP, and says why: the one that was asked for, or
// legacy where that has rules here, or the nft variant, or the one without a variant in its name,
// whichever works first. [agent I42]
func (s *shelf) detect(ipv6 bool) (program, string, error) {
	name := family(ipv6)
	if s.o.Force != "" {
		p, err := s.forced(name)
		return p, "--force-iptables-binary=" + s.o.Force, err
	}
	if hasLegacy(ipv6) {
		if legacy, err := s.find(name + "-legacy"); err == nil {
			if rules, saveErr := legacy.save(); saveErr == nil && !rules.empty() {
				return legacy, "legacy has rules here", nil
			}
		}
	}
	var errs []error
	for _, c := range []struct{ name, why string }{
		{name + "-nft", "it works and legacy has no rules here"}, {name, "it is the one that works"}, {name + "-legacy", "no other works"},
	} {
		p, err := s.find(c.name)
		if err == nil {
			err = p.works()
		}
		if err == nil {
			return p, c.why, nil
		}
		errs = append(errs, err)
	}
	return program{}, "", errors.Join(errs...)
}

// forced finds the variant under its own name, or under the one that may be either.
func (s *shelf) forced(name string) (program, error) {
	p, err := s.find(name + "-" + s.o.Force)
	if err == nil {
		return p, nil
	}
	plain, plainErr := s.find(name)
	if plainErr == nil && plain.variant == s.o.Force {
		return plain, nil
	}
	if plainErr == nil {
		plainErr = fmt.Errorf("%s is the other variant", plain)
	}
	return program{}, errors.Join(err, plainErr)
}

// variants are the programs of one version of IP, one for each kind of rules that there can be.
func (s *shelf) variants(ipv6 bool) (programs []program) {
	for _, suffix := range []string{"-legacy", "-nft", ""} {
		if len(programs) == 2 {
			break
		}
		p, err := s.find(family(ipv6) + suffix)
		if err == nil && (len(programs) == 0 || programs[0].variant != p.variant) {
			programs = append(programs, p)
		}
	}
	return programs
}
