"""flannelette-cloud with the providers' own SDKs, over HTTP."""
