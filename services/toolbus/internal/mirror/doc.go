// Package mirror keeps a local, read-only copy of a tenant's files and
// ToolState:
//
//	DIR/config/tenants/<tenant>/files/<path>
//	DIR/config/tenants/<tenant>/tmp/state/<namespace>_<chat>.json
//	DIR/config/tenants/<tenant>/.gitignore
//	DIR/config/tenants/<tenant>/.toolbus-sync/   what was written, and files in the making
//
// Every path goes through os.Root, so neither a name from the service nor a
// symbolic link placed in the folder leads out of it. A file appears whole or
// not at all. Sync makes it once, Follow keeps it.
package mirror
