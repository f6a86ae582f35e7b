// Package message holds every request, reply and event of the wire contract,
// one file per service. All are JSON with camelCase names. Readers ignore
// fields they do not know, so fields may be added; none is renamed or removed.
//
// Tenant and agent are never fields: they stand in the subject.
// Times are RFC 3339, durations are Go durations ("10s") unless a field's name
// carries its unit ("timeoutMs").
package message
