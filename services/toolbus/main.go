// Command toolbus is the command line of Toolbus, and with "toolbus up" all of
// it in one process.
package main

import (
	"os"

	"github.com/toolbus/toolbus/services/toolbus/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.LookupEnv))
}
