# What a shell inside the lab reads: the user's own settings, and a prompt that names the host.
LAB_PATH=$PATH
[ -r ~/.bashrc ] && . ~/.bashrc
PATH=$LAB_PATH
trap "exit 0" EXIT # make would call the last command's exit code an error
PS1="[$LAB_HOST] \w \\$ "
