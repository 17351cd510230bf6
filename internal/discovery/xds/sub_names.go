package xds

// Subscription returns what the client has subscribed to of a type: "*" for all, else names in order. It
// is nil if the client has not asked. The slice must not be changed.
func (s *Sub) Subscription(t Type) []string {
	c := &s.states[t]
	switch {
	case !c.asked:
		return nil
	case c.wildcard:
		return []string{"*"}
	}
	return c.names
}
