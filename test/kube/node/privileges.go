package node

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"
)

// capabilities are their names in the order of their numbers.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
	LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
	SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
	AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// usual are the capabilities that containers have unless they say otherwise, as in containerd.
var usual = strings.Fields(`CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW
	SYS_CHROOT MKNOD AUDIT_WRITE SETFCAP`)

// privileges are what a container's processes may do.
type privileges struct {
	uid, gid uint32
	groups   []uint32
	// keep are the capabilities that root can have.
	keep       []string
	noNewPrivs bool
	readOnly   bool
}

// privilegesOf reads the security contexts of a Pod and its container; the container's wins.
func privilegesOf(pod *corev1.Pod, c *corev1.Container, image Image) (privileges, error) {
	outer, inner := pod.Spec.SecurityContext, c.SecurityContext
	if outer == nil {
		outer = &corev1.PodSecurityContext{}
	}
	if inner == nil {
		inner = &corev1.SecurityContext{}
	}
	p := privileges{keep: slices.Clone(usual)}
	user := first(inner.RunAsUser, outer.RunAsUser, &image.User)
	group := first(inner.RunAsGroup, outer.RunAsGroup, new(int64(0)))
	p.uid, p.gid = uint32(*user), uint32(*group)
	nonRoot := first(inner.RunAsNonRoot, outer.RunAsNonRoot, new(false))
	if *nonRoot && p.uid == 0 {
		return p, fmt.Errorf("container has runAsNonRoot and image will run as root (container: %s)", c.Name)
	}
	for _, g := range outer.SupplementalGroups {
		p.groups = append(p.groups, uint32(g))
	}
	if outer.FSGroup != nil {
		p.groups = append(p.groups, uint32(*outer.FSGroup))
	}
	if inner.Capabilities != nil {
		for _, drop := range inner.Capabilities.Drop {
			p.keep = without(p.keep, string(drop))
		}
		for _, add := range inner.Capabilities.Add {
			if name := capability(string(add)); name == "ALL" {
				p.keep = slices.Clone(capabilities)
			} else if !slices.Contains(capabilities, name) {
				return p, fmt.Errorf("container %s: unknown capability %q", c.Name, add)
			} else {
				p.keep = append(p.keep, name)
			}
		}
	}
	if inner.Privileged != nil && *inner.Privileged {
		p.keep = slices.Clone(capabilities)
	}
	p.noNewPrivs = inner.AllowPrivilegeEscalation != nil && !*inner.AllowPrivilegeEscalation
	p.readOnly = inner.ReadOnlyRootFilesystem != nil && *inner.ReadOnlyRootFilesystem
	return p, nil
}

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

func capability(name string) string { return strings.TrimPrefix(strings.ToUpper(name), "CAP_") }

func without(list []string, name string) []string {
	name = capability(name)
	if name == "ALL" {
		return nil
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == name })
}

// apply limits what programs that the calling thread starts can get.
func (p privileges) apply() error {
	for number, name := range capabilities {
		if slices.Contains(p.keep, name) {
			continue
		}
		// A capability that the kernel does not know cannot be had.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %s: %w", name, err)
		}
	}
	if p.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return nil
}
