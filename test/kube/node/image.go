package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Image is what a container of an image runs.
type Image struct {
	// Files are the image's programs and files: paths in the container, below /usr/local, and where they are on this
	// machine.
	Files map[string]string
	// Entrypoint and Cmd are what runs when a container has no command, or no args.
	Entrypoint, Cmd []string
	// Env are variables that a container has before its own, NAME=value. Without a PATH there, it is the usual one.
	Env []string
	// User is who it runs as when the Pod does not say; 0 is root.
	User int64
	// Dir is the working directory; by default /.
	Dir string
}

// findImage finds what an image reference stands for: the key that equals it, with or without its registry, tag and
// digest.
func findImage(images map[string]Image, ref string) (Image, error) {
	name, _, _ := strings.Cut(ref, "@")
	if slash := strings.LastIndex(name, "/"); strings.LastIndex(name, ":") > slash {
		name = name[:strings.LastIndex(name, ":")]
	}
	for _, try := range []string{ref, name} {
		for {
			if image, ok := images[try]; ok {
				return image, nil
			}
			_, rest, more := strings.Cut(try, "/")
			if !more {
				break
			}
			try = rest
		}
	}
	return Image{}, fmt.Errorf("image %q: the node has no program for it", ref)
}

// commandLine is the program and its arguments, before variables are expanded.
func (i Image) commandLine(c *corev1.Container) ([]string, error) {
	entry, args := i.Entrypoint, i.Cmd
	if len(c.Command) > 0 {
		entry, args = c.Command, nil
	}
	if len(c.Args) > 0 {
		args = c.Args
	}
	line := append(append([]string{}, entry...), args...)
	if len(line) == 0 {
		return nil, fmt.Errorf("container %s: neither it nor its image %q has a command", c.Name, c.Image)
	}
	return line, nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds a program in the PATH of env. It is called on the container's thread.
func lookPath(program, dir string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		if !filepath.IsAbs(program) {
			program = filepath.Join(dir, program)
		}
		_, err := os.Stat(program)
		return program, err
	}
	path := ""
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
		}
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, program)
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("find %q in PATH %q: %w", program, path, errors.New("no such program"))
}
