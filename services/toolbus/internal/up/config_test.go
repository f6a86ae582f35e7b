package up

import (
	"errors"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestConfigValidate(t *testing.T) {
	good := Config{Listen: "127.0.0.1:0", Data: "x", Sync: SyncAlways}
	for name, c := range map[string]struct {
		change func(*Config)
		field  string // "" for valid
	}{
		"default":            {func(*Config) {}, ""},
		"IPv6":               {func(c *Config) { c.Listen = "[::1]:4222" }, ""},
		"every interface":    {func(c *Config) { c.Listen = ":4222" }, ""},
		"duration":           {func(c *Config) { c.Sync = "2m" }, ""},
		"no port":            {func(c *Config) { c.Listen = "127.0.0.1" }, "listen"},
		"empty listen":       {func(c *Config) { c.Listen = "" }, "listen"},
		"port name":          {func(c *Config) { c.Listen = "127.0.0.1:nats" }, "listen"},
		"port too large":     {func(c *Config) { c.Listen = "127.0.0.1:65536" }, "listen"},
		"negative port":      {func(c *Config) { c.Listen = "127.0.0.1:-1" }, "listen"},
		"no data":            {func(c *Config) { c.Data = "" }, "data"},
		"unknown sync":       {func(c *Config) { c.Sync = "never" }, "sync"},
		"no sync":            {func(c *Config) { c.Sync = "" }, "sync"},
		"zero sync":          {func(c *Config) { c.Sync = "0s" }, "sync"},
		"job timeout":        {func(c *Config) { c.JobTimeout = time.Second }, ""},
		"negative timeout":   {func(c *Config) { c.JobTimeout = -1 }, "job-timeout"},
		"sync without units": {func(c *Config) { c.Sync = "5" }, "sync"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			err := cfg.Validate()
			if c.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *errcode.Error
			if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details.Fields[0].Field != c.field {
				t.Errorf("got %v, want a fault of %s", err, c.field)
			}
		})
	}
}

func TestDefaultData(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"XDG":          {map[string]string{"XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/toolbus"},
		"relative XDG": {map[string]string{"XDG_DATA_HOME": "x", "HOME": "/h"}, "/h/.local/share/toolbus"},
		"home":         {map[string]string{"HOME": "/h"}, "/h/.local/share/toolbus"},
		"nothing":      {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := defaultData(func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestExposed(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": false, "127.1.2.3": false, "::1": false, "localhost": false,
		"0.0.0.0": true, "::": true, "10.0.0.1": true, "example.org": true,
	} {
		if got := exposed(host); got != want {
			t.Errorf("%s: got %v", host, got)
		}
	}
}
