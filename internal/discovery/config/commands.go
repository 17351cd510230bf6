package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/cel"
)

// plainCommands are the commands of a format of access logs that take nothing, as Envoy 1.40 has them.
// https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
var plainCommands = strings.Fields("ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS CUSTOM_FLAGS " +
	"DOWNSTREAM_CX_RTT DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT " +
	"DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID " +
	"DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_HANDSHAKE_DURATION " +
	"DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID " +
	"DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN " +
	"DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT " +
	"DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1 DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN " +
	"DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN " +
	"DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL DOWNSTREAM_PEER_OTHERNAME_SAN " +
	"DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS DOWNSTREAM_REMOTE_PORT " +
	"DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION DOWNSTREAM_TRANSPORT_FAILURE_REASON " +
	"DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION FILTER_CHAIN_NAME GRPC_STATUS_NUMBER HOSTNAME LISTENER_NAME " +
	"LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE " +
	"RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION " +
	"ROUNDTRIP_DURATION ROUTE_NAME ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID STREAM_ID TLS_JA3_FINGERPRINT " +
	"TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID " +
	"UPSTREAM_CONNECTION_IDS_ATTEMPTED UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED " +
	"UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT " +
	"UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED " +
	"UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_CLOSE_REASON " +
	"UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN " +
	"UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS " +
	"UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID UPSTREAM_REMOTE_PORT UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER " +
	"UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED " +
	"UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME")

// commandRule says what a command takes.
type commandRule struct {
	// required is set if it needs a parameter, length if the output may be cut.
	required, length bool
	// check checks the parameter, nil for any.
	check func(string) error
}

// otherCommands are those that take something.
var otherCommands = map[string]commandRule{
	"REQ": {true, true, headerNames}, "REQUEST_HEADER": {true, true, headerNames}, "RESP": {true, true, headerNames}, "RESPONSE_HEADER": {true, true, headerNames},
	"TRAILER": {true, true, headerNames}, "RESPONSE_TRAILER": {true, true, headerNames}, "REQ_WITHOUT_QUERY": {true, true, headerNames},
	"STREAM_INFO_REQ":  {true, true, headerNames},
	"DYNAMIC_METADATA": {required: true, length: true}, "CLUSTER_METADATA": {required: true}, "UPSTREAM_METADATA": {required: true}, "METADATA": {true, true, metadataOf},
	"FILTER_STATE": {true, true, filterState}, "UPSTREAM_FILTER_STATE": {true, true, filterState},
	"ENVIRONMENT": {required: true, length: true}, "QUERY_PARAM": {required: true, length: true},
	"QUERY_PARAMS":          {false, true, options([]string{"ORIG", "DECODED"})},
	"PATH":                  {false, true, options([]string{"WQ", "NQ"}, "ORIG", "PATH", "ORIG_OR_PATH")},
	"REQUESTED_SERVER_NAME": {false, false, options([]string{"SNI_ONLY", "SNI_FIRST", "HOST_FIRST"}, "ORIG", "HOST", "ORIG_OR_HOST")},
	"GRPC_STATUS":           {false, false, options([]string{"CAMEL_STRING", "SNAKE_STRING", "NUMBER"})},
	"COMMON_DURATION":       {true, false, commonDuration},
	"CEL":                   {true, true, cel.Check}, "TYPED_CEL": {true, true, cel.Check}, "COALESCE": {required: true, length: true},
	"START_TIME": {}, "START_TIME_LOCAL": {}, "EMIT_TIME": {}, "EMIT_TIME_LOCAL": {}, "RESPONSE_CODE_DETAILS": {},
	"DOWNSTREAM_PEER_CERT_V_START": {}, "DOWNSTREAM_PEER_CERT_V_END": {}, "UPSTREAM_PEER_CERT_V_START": {}, "UPSTREAM_PEER_CERT_V_END": {},
	"DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": {}, "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": {}, "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT": {},
	"DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT": {}, "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": {}, "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": {},
}

// logCommand is a command at the beginning of a text: its name, parameter and length.
var logCommand = regexp.MustCompile(`^%([A-Z0-9_]+)(?:\((.*?)\))?(?::([0-9]+))?%`)

// commands checks the commands of a format of access logs: Envoy refuses listeners for an invalid one.
func (c *check) commands(at, text string) {
	if err := checkFormat(text); err != nil {
		c.fail(at, "%s", err)
	}
}

// checkFormat reports what Envoy would refuse a format for.
func checkFormat(text string) error {
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			return nil
		}
		if text = text[i:]; strings.HasPrefix(text, "%%") {
			text = text[2:]
			continue
		}
		found := logCommand.FindStringSubmatchIndex(text)
		if found == nil {
			return fmt.Errorf("invalid command at %.40q: want one such as %%PROTOCOL%% or %%REQ(:PATH)%%, or %%%% for a percent sign", text)
		}
		part := func(i int) string {
			if found[2*i] < 0 {
				return ""
			}
			return text[found[2*i]:found[2*i+1]]
		}
		if err := checkCommand(part(1), part(2), part(3)); err != nil {
			return err
		}
		text = text[found[1]:]
	}
}

// checkCommand checks one command, whose length is empty or a number.
func checkCommand(name, parameter, length string) error {
	if slices.Contains(plainCommands, name) {
		if parameter != "" || length != "" {
			return fmt.Errorf("the command %%%s%% takes no parameter and no length; remove them", name)
		}
		return nil
	}
	rule, known := otherCommands[name]
	switch {
	case !known:
		return fmt.Errorf("unknown command %%%s%%: want one that Envoy has, or %%%% for a percent sign", name)
	case parameter == "" && rule.required:
		return fmt.Errorf("the command %%%s%% needs a parameter, as in %%REQ(:PATH)%%", name)
	case length != "" && !rule.length:
		return fmt.Errorf("the command %%%s%% takes no length; remove %q", name, ":"+length)
	}
	if _, err := strconv.ParseUint(length, 10, 63); length != "" && err != nil {
		return fmt.Errorf("the command %%%s%% has an invalid length %q", name, length)
	}
	var err error
	if name == "COALESCE" {
		err = firstOf(parameter)
	} else if rule.check != nil && parameter != "" {
		err = rule.check(parameter)
	}
	if err != nil {
		return fmt.Errorf("the command %%%s(%.80s)%%: %w", name, parameter, err)
	}
	return nil
}

// headerNames checks the name of a header, and another one after a question mark.
func headerNames(p string) error {
	if strings.ContainsAny(p, "\x00\r\n") || strings.Count(p, "?") > 1 {
		return errors.New("want the name of a header, or two with a question mark between them")
	}
	for name := range strings.SplitSeq(p, "?") {
		if name != "" && !isToken(strings.TrimPrefix(name, ":")) {
			return fmt.Errorf("invalid header name %q", name)
		}
	}
	return nil
}

// options returns the check of a parameter that is one of first, with one of second after a colon if there are any.
func options(first []string, second ...string) func(string) error {
	return func(p string) error {
		a, b, more := strings.Cut(p, ":")
		if !slices.Contains(first, a) {
			return fmt.Errorf("want one of %s", strings.Join(first, ", "))
		}
		if more && !slices.Contains(second, b) {
			return fmt.Errorf("invalid %q after the colon: want one of %s", b, strings.Join(second, ", "))
		}
		return nil
	}
}

func metadataOf(p string) error {
	kind, _, _ := strings.Cut(p, ":")
	if kinds := []string{"DYNAMIC", "CLUSTER", "ROUTE", "UPSTREAM_HOST", "LISTENER", "LISTENER_FILTER_CHAIN", "VIRTUAL_HOST"}; !slices.Contains(kinds, kind) {
		return fmt.Errorf("invalid kind of metadata %q: want one of %s", kind, strings.Join(kinds, ", "))
	}
	return nil
}

func filterState(p string) error {
	parts := strings.Split(p, ":")
	if parts[0] == "" || len(parts) > 3 || len(parts) == 2 && parts[1] != "PLAIN" && parts[1] != "TYPED" || len(parts) == 3 && parts[1] != "FIELD" {
		return errors.New("want a key, and after a colon PLAIN, TYPED, or FIELD and the name of a field")
	}
	return nil
}

func commonDuration(p string) error {
	parts := strings.Split(p, ":")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && !slices.Contains([]string{"ms", "us", "ns"}, parts[2]) {
		return errors.New("want two points in time with a colon between them, and maybe one of ms, us and ns after another")
	}
	return nil
}

// firstOf checks the parameter of COALESCE: which commands are tried, in JSON.
func firstOf(p string) error {
	var all struct {
		Operators []json.RawMessage `json:"operators"`
	}
	if err := json.Unmarshal([]byte(p), &all); err != nil {
		return fmt.Errorf("want a JSON object: %w", err)
	}
	if len(all.Operators) == 0 {
		return errors.New("want commands in the list \"operators\"")
	}
	for _, raw := range all.Operators {
		one := struct {
			Command string `json:"command"`
			Param   string `json:"param"`
		}{}
		if json.Unmarshal(raw, &one.Command) != nil {
			if err := json.Unmarshal(raw, &one); err != nil {
				return fmt.Errorf("want the name of a command, or an object with command and param: %w", err)
			}
		}
		if one.Command == "COALESCE" {
			return errors.New("want no COALESCE within it")
		}
		if err := checkCommand(one.Command, one.Param, ""); err != nil {
			return err
		}
	}
	return nil
}
