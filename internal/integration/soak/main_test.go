package main

import (
	"testing"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m, roles) }
