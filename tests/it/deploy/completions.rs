//! What `chronosdb completions` writes, in the shells that will read it.

use std::process::Command;

use super::container::program;
use super::printed;

fn script(shell: &str) -> String {
    printed(program().args(["completions", shell]), "")
}

#[test]
fn bash_completes_commands_and_flags() {
    let script = script("bash");
    for (typed, expected) in [("va", "validate"), ("validate --for", "--format")] {
        let words: Vec<&str> = typed.split(' ').collect();
        let complete = format!(
            "eval \"$(cat)\"; COMP_WORDS=(chronosdb {typed}); COMP_CWORD={}; \
             _chronosdb chronosdb {} ''; echo \"${{COMPREPLY[@]}}\"",
            words.len(),
            words[words.len() - 1],
        );
        let completed = printed(Command::new("bash").args(["-c", &complete]), &script);
        assert_eq!(completed.trim(), expected, "{typed}<TAB>");
    }
}

#[test]
fn each_shell_has_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for command in ["serve", "check", "validate", "explain", "healthcheck", "completions"] {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
}
