# Completion of thinwire's commands, options and names for bash. The command itself tells what may
# follow: `thinwire bench --help=words`.
_thinwire() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} commands=() word lines
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word != -* ]] || break
        commands+=("$word")
    done
    lines=$("${COMP_WORDS[0]}" "${commands[@]}" --help=words 2>/dev/null) || return
    if [[ $previous == --* ]] && word=$(grep -e "^$previous " <<<"$lines"); then
        COMPREPLY=($(compgen -W "${word#* }" -- "$current"))
    elif [[ $current == -* || $lines != --* ]]; then
        COMPREPLY=($(compgen -W "$(cut -d ' ' -f 1 <<<"$lines")" -- "$current"))
    fi
}
complete -o default -F _thinwire thinwire
