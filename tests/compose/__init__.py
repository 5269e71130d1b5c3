"""The images and the compose lab, on a docker engine (`make compose-test`)."""
