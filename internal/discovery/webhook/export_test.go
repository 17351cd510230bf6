package webhook

import "time"

// SetLimits changes how long requests wait for their turn, and how long their bodies may take. Call it before Handler.
func (s *Server) SetLimits(wait, body time.Duration) { s.wait, s.body = wait, body }
