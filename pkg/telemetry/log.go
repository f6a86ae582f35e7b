package telemetry

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// Logger writes leveled lines of one module. A module is Core, Host or
// Tool_<Name>; it stands on every line and names the log file.
type Logger struct {
	base   log.Logger // without module
	module string
	log    log.Logger
}

// NewLogger writes to w as cfg says. Close the closer at the end when LogDir is
// set.
func NewLogger(w io.Writer, cfg Config) (Logger, io.Closer, error) {
	var lvl level.Option
	switch cfg.LogLevel {
	case "debug":
		lvl = level.AllowDebug()
	case "info", "":
		lvl = level.AllowInfo()
	case "warn":
		lvl = level.AllowWarn()
	case "error":
		lvl = level.AllowError()
	default:
		return Logger{}, nil, fmt.Errorf("log-level %q: must be debug, info, warn or error", cfg.LogLevel)
	}
	var enc func(io.Writer) log.Logger
	switch cfg.LogFormat {
	case "logfmt", "":
		enc = log.NewLogfmtLogger
	case "json":
		enc = log.NewJSONLogger
	default:
		return Logger{}, nil, fmt.Errorf("log-format %q: must be logfmt or json", cfg.LogFormat)
	}
	base := enc(log.NewSyncWriter(w))
	var closer io.Closer = io.NopCloser(nil)
	if cfg.LogDir != "" {
		f := &moduleFiles{dir: cfg.LogDir, enc: enc, now: time.Now, files: map[string]*moduleFile{}}
		base, closer = tee{base, f}, f
	}
	base = log.With(level.NewFilter(base, lvl), "ts", log.DefaultTimestampUTC)
	return Logger{base: base}.Module("Core"), closer, nil
}

// Discard logs nothing.
func Discard() Logger { return Logger{base: log.NewNopLogger()}.Module("Core") }

// Module returns a logger of another module.
func (l Logger) Module(name string) Logger {
	return Logger{base: l.base, module: name, log: log.With(l.base, "module", name)}
}

// With adds key-value pairs to every line.
func (l Logger) With(keyvals ...any) Logger {
	return Logger{base: log.With(l.base, keyvals...), module: l.module, log: log.With(l.log, keyvals...)}
}

// Debug logs what only a developer wants to know.
func (l Logger) Debug(msg string, keyvals ...any) { l.write(level.Debug(l.log), msg, keyvals) }

// Info logs what an operator may want to know.
func (l Logger) Info(msg string, keyvals ...any) { l.write(level.Info(l.log), msg, keyvals) }

// Warn logs what an operator should look at some time.
func (l Logger) Warn(msg string, keyvals ...any) { l.write(level.Warn(l.log), msg, keyvals) }

// Error logs what an operator must look at.
func (l Logger) Error(msg string, keyvals ...any) { l.write(level.Error(l.log), msg, keyvals) }

func (l Logger) write(to log.Logger, msg string, keyvals []any) {
	_ = to.Log(append([]any{"msg", msg}, keyvals...)...)
}

type tee struct{ a, b log.Logger }

func (t tee) Log(keyvals ...any) error {
	err := t.a.Log(keyvals...)
	if err2 := t.b.Log(keyvals...); err == nil {
		err = err2
	}
	return err
}

// moduleFiles writes <dir>/<YYYY-MM-DD>/<Module>.log.
type moduleFiles struct {
	dir   string
	enc   func(io.Writer) log.Logger
	now   func() time.Time
	mu    sync.Mutex
	files map[string]*moduleFile
}

type moduleFile struct {
	day string
	f   *os.File
	log log.Logger
}

func (m *moduleFiles) Log(keyvals ...any) error {
	module := "Core"
	for i := 0; i+1 < len(keyvals); i += 2 {
		if keyvals[i] == "module" {
			module = fmt.Sprint(keyvals[i+1])
			break // the logger's own; a later one is the caller's key of the same name
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		return os.ErrClosed
	}
	day := m.now().UTC().Format(time.DateOnly) // as the lines' ts
	mf := m.files[module]
	if mf == nil || mf.day != day {
		if mf != nil {
			_ = mf.f.Close()
		}
		dir := filepath.Join(m.dir, day)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(dir, fileName(module)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			return err
		}
		mf = &moduleFile{day: day, f: f, log: m.enc(f)}
		m.files[module] = mf
	}
	return mf.log.Log(keyvals...)
}

func (m *moduleFiles) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	for _, mf := range m.files {
		if err := mf.f.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.files = nil
	return first
}

// fileName keeps a module's name from leaving the folder, and within what a
// file system takes.
func fileName(module string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, module)
	if len(clean) > 128 {
		clean = clean[:128]
	}
	return clean + ".log"
}
