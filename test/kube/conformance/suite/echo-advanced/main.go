// Command echo-advanced stands for the image of that name in the mesh tests of the conformance suite.
//
// It serves what says what arrived and, by the name client, makes requests and prints the answers in the form that the suite reads. Of the image
// it has what the suite uses: HTTP, and gRPC without TLS, of which the messages have text in place of an encoding.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	run := serve
	if filepath.Base(os.Args[0]) == "client" {
		run = call
	}
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve serves the ports in --port and --grpc, but for those in --tls, until ctx ends.
func serve(ctx context.Context, args []string) error {
	ports, secure := map[string]bool{}, map[string]bool{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "port", "grpc":
			ports[value] = true
		case "tls":
			secure[value] = true
		}
	}
	failed := make(chan error, len(ports))
	for port := range ports {
		if secure[port] {
			continue
		}
		s := &http.Server{Addr: ":" + port, Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Minute, Protocols: &http.Protocols{}}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		go func() { failed <- s.ListenAndServe() }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// echo answers with what arrived.
func echo(w http.ResponseWriter, r *http.Request) {
	var out bytes.Buffer
	name, _ := os.Hostname()
	fmt.Fprintf(&out, "StatusCode=200\nHost=%s\nMethod=%s\nURL=%s\nProto=%s\n", r.Host, r.Method, r.URL.RequestURI(), r.Proto)
	for key, values := range r.Header {
		for _, value := range values {
			fmt.Fprintf(&out, "RequestHeader=%s:%s\n", key, value)
		}
	}
	fmt.Fprintf(&out, "Hostname=%s\n", name)
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		_, _ = w.Write(out.Bytes())
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write(framed(out.Bytes()))
	w.Header().Set("Grpc-Status", "0")
}

// framed is a message of gRPC with a text.
func framed(text []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
}

// call makes requests: URL [--method=METHOD] [--count=N] [-H NAME:VALUE]….
func call(ctx context.Context, args []string) error {
	var to, method string
	var headers []string
	count := 1
	for i := 0; i < len(args); i++ {
		name, value, _ := strings.Cut(args[i], "=")
		switch {
		case name == "--method":
			method = value
		case name == "--count":
			var err error
			if count, err = strconv.Atoi(value); err != nil {
				return err
			}
		case name == "-H" && i+1 < len(args):
			i++
			headers = append(headers, args[i])
		default:
			to = args[i]
		}
	}
	u, err := url.Parse(to)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableCompression: true}
	grpc := u.Scheme == "grpc"
	if grpc {
		u.Scheme, u.Path, method = "http", "/proto.EchoTestService/Echo", http.MethodPost
		transport.Protocols = &http.Protocols{}
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for i := range count {
		if err := one(ctx, client, u, method, headers, grpc, i); err != nil {
			return err
		}
	}
	return nil
}

// one makes a request and prints the answer, with an empty line after it.
func one(ctx context.Context, client *http.Client, u *url.URL, method string, headers []string, grpc bool, i int) error {
	var body io.Reader = http.NoBody
	if grpc {
		body = bytes.NewReader(framed(nil))
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return err
	}
	if grpc {
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
	}
	for _, h := range headers {
		if name, value, _ := strings.Cut(h, ":"); strings.EqualFold(name, "host") {
			req.Host = value
		} else {
			req.Header.Add(name, value)
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if grpc {
		if status := res.Trailer.Get("Grpc-Status"); status != "0" || len(text) < 5 {
			return errors.New("gRPC status " + status + res.Header.Get("Grpc-Status") + ": " + res.Header.Get("Grpc-Message"))
		}
		text = text[5:]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "[%d] Url=%s\n[%d] StatusCode=%d\n", i, u, i, res.StatusCode)
	for _, key := range slices.Sorted(maps.Keys(res.Header)) {
		for _, value := range res.Header[key] {
			fmt.Fprintf(&out, "[%d] ResponseHeader=%s:%s\n", i, key, value)
		}
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			fmt.Fprintf(&out, "[%d body] %s\n", i, line)
		}
	}
	fmt.Println(out.String())
	return nil
}
