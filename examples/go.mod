module github.com/toolbus/toolbus/examples

go 1.26.0

replace github.com/toolbus/toolbus/contracts => ../contracts

require github.com/toolbus/toolbus/pkg v0.0.0

replace github.com/toolbus/toolbus/pkg => ../pkg
