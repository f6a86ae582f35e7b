module github.com/toolbus/toolbus/contracts

go 1.26.0
