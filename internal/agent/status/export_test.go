package status

import "net/http"

// Handler lets tests choose where a request comes from.
func Handler(s *Server) http.Handler { return s.handler() }
