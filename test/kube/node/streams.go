package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// streamTimeout bounds how long a client may take to open the streams that it needs.
const streamTimeout = 30 * time.Second

// portForwardProtocol is the protocol of port-forward.
const portForwardProtocol = "portforward.k8s.io"

// wanted are the streams of an exec.
type wanted struct{ stdin, stdout, stderr bool }

// execStreams serves one exec over SPDY, and calls run with its streams.
func execStreams(w http.ResponseWriter, r *http.Request, want wanted, run func(context.Context, io.Reader, io.Writer, io.Writer) (int, error)) error {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return err
	}
	arrived := make(chan httpstream.Stream)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		select {
		case arrived <- s:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if conn == nil {
		return errors.New("the request is not an upgrade to SPDY")
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	streams, err := awaitStreams(ctx, arrived, want)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-conn.CloseChan():
			cancel()
		case <-ctx.Done():
		}
	}()
	var in io.Reader
	if s := streams[corev1.StreamTypeStdin]; s != nil {
		in = s
	}
	code, err := run(ctx, in, writerOr(streams[corev1.StreamTypeStdout]), writerOr(streams[corev1.StreamTypeStderr]))
	text, marshalErr := json.Marshal(execStatus(code, err))
	if marshalErr != nil {
		return marshalErr
	}
	_, err = streams[corev1.StreamTypeError].Write(text)
	for _, s := range streams {
		_ = s.Close()
	}
	// The client ends the connection once it has read everything. The API server between the two ends both directions
	// as soon as one fails, so that closing the connection first could lose output.
	timer := time.NewTimer(streamTimeout)
	defer timer.Stop()
	select {
	case <-conn.CloseChan():
	case <-ctx.Done():
	case <-timer.C:
	}
	return err
}

func writerOr(s httpstream.Stream) io.Writer {
	if s == nil {
		return io.Discard
	}
	return s
}

// awaitStreams waits for the streams that a client has announced, by their type.
func awaitStreams(ctx context.Context, arrived <-chan httpstream.Stream, want wanted) (map[string]httpstream.Stream, error) {
	missing := map[string]bool{corev1.StreamTypeError: true}
	for name, on := range map[string]bool{corev1.StreamTypeStdin: want.stdin, corev1.StreamTypeStdout: want.stdout, corev1.StreamTypeStderr: want.stderr} {
		if on {
			missing[name] = true
		}
	}
	out := map[string]httpstream.Stream{}
	timer := time.NewTimer(streamTimeout)
	defer timer.Stop()
	for len(missing) > 0 {
		select {
		case s := <-arrived:
			kind := s.Headers().Get(corev1.StreamType)
			if !missing[kind] {
				return nil, fmt.Errorf("exec: unexpected stream %q", kind)
			}
			delete(missing, kind)
			out[kind] = s
		case <-timer.C:
			return nil, fmt.Errorf("exec: the client opened %d of %d streams", len(out), len(out)+len(missing))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return out, nil
}

// execStatus is what the error stream says.
func execStatus(code int, err error) metav1.Status {
	switch {
	case err != nil:
		return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	case code != 0:
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %d", code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
		}
	}
	return metav1.Status{Status: metav1.StatusSuccess}
}

// forwardStreams serves one port-forward over SPDY: each pair of streams, for data and for errors, is a connection.
func forwardStreams(w http.ResponseWriter, r *http.Request, dial func(context.Context, uint16) (net.Conn, error)) error {
	if _, err := httpstream.Handshake(r, w, []string{portForwardProtocol}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var group sync.WaitGroup
	f := &forwarder{ctx: ctx, dial: dial, pairs: map[string]map[string]httpstream.Stream{}, group: &group}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, f.add)
	if conn == nil {
		return errors.New("the request is not an upgrade to SPDY")
	}
	f.mu.Lock()
	f.conn = conn
	f.mu.Unlock()
	select {
	case <-conn.CloseChan():
	case <-ctx.Done():
	}
	cancel()
	err := conn.Close()
	group.Wait()
	return err
}

type forwarder struct {
	ctx   context.Context
	dial  func(context.Context, uint16) (net.Conn, error)
	group *sync.WaitGroup

	mu    sync.Mutex
	conn  httpstream.Connection
	pairs map[string]map[string]httpstream.Stream
}

// maxPairs bounds the connections of one client that are not complete.
const maxPairs = 1000

// add takes a stream; the second of a pair begins the connection.
func (f *forwarder) add(s httpstream.Stream, replied <-chan struct{}) error {
	id, kind := s.Headers().Get(corev1.PortForwardRequestIDHeader), s.Headers().Get(corev1.StreamType)
	port, err := strconv.ParseUint(s.Headers().Get(corev1.PortHeader), 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("port-forward: invalid port %q: want 1–65535", s.Headers().Get(corev1.PortHeader))
	}
	if kind != corev1.StreamTypeData && kind != corev1.StreamTypeError {
		return fmt.Errorf("port-forward: invalid stream type %q: want data or error", kind)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	pair := f.pairs[id]
	if pair == nil {
		if len(f.pairs) >= maxPairs {
			return fmt.Errorf("port-forward: more than %d incomplete connections", maxPairs)
		}
		pair = map[string]httpstream.Stream{}
		f.pairs[id] = pair
	}
	if pair[kind] != nil {
		return fmt.Errorf("port-forward: a second stream %q for request %q", kind, id)
	}
	pair[kind] = s
	if len(pair) == 2 {
		delete(f.pairs, id)
		f.group.Go(func() {
			<-replied
			f.forward(pair[corev1.StreamTypeData], pair[corev1.StreamTypeError], uint16(port))
		})
	}
	return nil
}

// forward copies between a stream and a connection to the Pod.
func (f *forwarder) forward(data, errs httpstream.Stream, port uint16) {
	defer func() {
		_ = data.Close()
		_ = errs.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.conn != nil {
			f.conn.RemoveStreams(data, errs)
		}
	}()
	c, err := f.dial(f.ctx, port)
	if err != nil {
		_, _ = fmt.Fprintf(errs, "forward to port %d: %v", port, err)
		return
	}
	stop := context.AfterFunc(f.ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(c, data)
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(data, c)
	// Closed, not reset: a reset would lose what the client has not read yet.
	_ = data.Close()
	<-sent
}
