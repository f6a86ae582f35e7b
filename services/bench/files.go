package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/toolbus/toolbus/pkg/files"
)

const fileName = "bench.txt"

func kilobyte() []byte { return []byte(strings.Repeat("0123456789abcdef", 64)) }

func sized(got []byte) error {
	if len(got) != len(kilobyte()) {
		return fmt.Errorf("got %d bytes", len(got))
	}
	return nil
}

func fileRead(ctx context.Context, b *testbed) (op, error) {
	c := files.New(b.nc, tenant)
	_, err := c.Write(ctx, fileName, kilobyte())
	return timed(func(ctx context.Context, _ int) error {
		got, _, _, err := c.Read(ctx, fileName)
		if err != nil {
			return err
		}
		return sized(got)
	}), err
}

func fileWrite(_ context.Context, b *testbed) (op, error) {
	c := files.New(b.nc, tenant)
	content := kilobyte()
	return timed(func(ctx context.Context, _ int) error {
		_, err := c.Write(ctx, fileName, content)
		return err
	}), nil
}
