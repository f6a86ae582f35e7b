// Package members keeps a club's affairs in the tenant's files, through the
// internal tools writeFile and readFile: a list of members (registerMember), a
// log (logEvent), pictures (saveThumbnail) and reports (archiveReport).
//
// The files are the tenant's, shared by all its agents and chats. A tool that
// reads a file, changes it and writes it back, as registerMember does, is not
// safe against another that does so at the same moment: the last one wins. For
// more than the occasional entry use a database, or one file per entry written
// with mode create. Appends are safe: none is lost.
package members

import "github.com/toolbus/toolbus/pkg/tool"

// Tools are the tools of this package.
func Tools() []tool.Tool {
	return []tool.Tool{RegisterMember, LogEvent, SaveThumbnail, ArchiveReport}
}
