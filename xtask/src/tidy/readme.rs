//! The README's Rust is a file that CI runs: a line `<!-- example: PATH -->` stands before each
//! block, and the block is what that file holds, without its document and its `#![…]` lines.

use super::Finding;

/// Compares the blocks with the files; `read` gives a file's text.
pub(super) fn check(readme: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, what: String| {
        findings.push(Finding { file: "README.md".to_owned(), line, what });
    };
    let mut example: Option<&str> = None;
    let mut lines = readme.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(path) = line.strip_prefix("<!-- example: ") {
            example = path.strip_suffix(" -->");
        } else if line.starts_with("```rust") {
            let block: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            match example.take() {
                None => found(index + 1, "Rust that no example holds: nobody runs it".to_owned()),
                Some(path) => match read(path) {
                    None => found(index + 1, format!("there is no {path}")),
                    Some(file) if body(&file) == block.join("\n").trim() => {}
                    Some(_) => found(index + 1, format!("it is not what {path} holds")),
                },
            }
        }
    }
    findings
}

/// An example without its document and its attributes.
fn body(file: &str) -> String {
    let is_head =
        |line: &&str| line.starts_with("//!") || line.starts_with("#![") || line.is_empty();
    let lines: Vec<&str> = file.lines().skip_while(is_head).collect();
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    const FILE: &str = "//! An example.\n#![expect(x)]\n\nuse a;\n\nfn main() {}\n";

    fn check(readme: &str) -> Vec<String> {
        let read = |path: &str| (path == "a.rs").then(|| FILE.to_owned());
        super::check(readme, &read).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_block_is_what_its_example_holds() {
        let block = |body: &str| format!("<!-- example: a.rs -->\n```rust\n{body}\n```\n");
        assert_eq!(check(&block("use a;\n\nfn main() {}")), [""; 0]);
        assert_eq!(check(&block("use a;\n\nfn main() { b }")), ["it is not what a.rs holds"]);
    }

    #[test]
    fn a_block_needs_an_example_and_other_languages_do_not() {
        assert_eq!(check("```rust\nuse a;\n```\n"), ["Rust that no example holds: nobody runs it"]);
        assert_eq!(check("```sh\ncargo test\n```\n"), [""; 0]);
        let missing = "<!-- example: b.rs -->\n```rust\nuse a;\n```\n";
        assert_eq!(check(missing), ["there is no b.rs"]);
    }
}
