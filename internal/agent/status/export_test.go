package status

import "net/http"

// Handler lets tests choose the source of a request.
func Handler(s *Server) http.Handler { return s.handler() }
