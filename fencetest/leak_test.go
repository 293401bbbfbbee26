package fencetest

import (
	"testing"

	"github.com/fencelock/fencelock/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
