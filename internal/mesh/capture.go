package mesh

// CaptureReportType is the type URL of requests by which an agent reports what was wrong with the rules of capture: the message of
// the error detail says it. Nothing is answered. It is this project's own; other control planes take such a request for the refusal of
// a response of a type that they do not know, and ignore it.
const CaptureReportType = "type.googleapis.com/pilothouse.v1.CaptureReport"
