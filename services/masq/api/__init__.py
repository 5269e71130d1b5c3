"""The gRPC calls of flannelette.masq.v1: they translate requests and answers, and decide nothing about rules."""
