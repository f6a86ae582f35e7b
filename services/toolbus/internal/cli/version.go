package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is what this build calls itself.
const Version = "0.1.0"

type versionReply struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Commit   string `json:"commit,omitempty"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: args(0),
		RunE: a.do(func(context.Context, []string) error {
			v := versionReply{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v.Commit = s.Value
					}
				}
			}
			return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "toolbus %s (%s, %s)\n", v.Version, v.Go, v.Platform) })
		}),
	}
}
