//! Damaged collections, and the report and the effect of `repair`.

use super::*;

/// Regression: a repair that could not save rows ended with success.
#[test]
fn damage_is_told_and_repaired_on_request() {
    let folder = Folder::new("repair");
    let path = folder.collection(COLOURS);
    assert!(printed(&["vectors", "repair", &path]).contains("Nothing is damaged; 4 records are there."));
    let log = Path::new(&path).join("segment-000000.log");
    let mut bytes = fs::read(&log).unwrap();
    let end = bytes.len();
    bytes[end / 2] ^= 1;
    fs::write(&log, &bytes).unwrap();
    for command in ["info", "count", "compact"] {
        let message = refused(&["vectors", command, &path], 1);
        assert!(
            message.contains("segment-000000.log is damaged at byte") && message.contains("vectors repair"),
            "{message}"
        );
    }
    // Rows are lost, so the command fails, and prints the damage.
    let repair = |arguments: &[&str]| {
        let output = command(&[&["vectors", "repair", &path], arguments].concat()).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        (String::from_utf8(output.stdout).unwrap(), complaint)
    };
    let (found, complaint) = repair(&["--json"]);
    assert!(complaint.contains("4 rows cannot be saved"), "{complaint}");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((found["damaged"].as_bool(), found["applied"].as_bool()), (Some(true), Some(false)));
    assert_eq!((found["rows_lost"].as_u64(), fs::read(&log).unwrap()), (Some(4), bytes));
    let (text, _) = repair(&[]);
    assert!(text.contains("0 records would be kept, and 4 rows lost") && text.contains("--apply"), "{text}");
    let (text, complaint) = repair(&["--apply"]);
    assert!(text.contains(".damaged behind their names") && complaint.contains("4 rows are lost"), "{text}{complaint}");
    assert_eq!(records(&path), 0);
    assert!(printed(&["vectors", "repair", &path]).contains("Nothing is damaged"));
    printed(&["vectors", "import", &path, &folder.path("rows.jsonl")]);
    assert_eq!(records(&path), 4);
    printed(&["vectors", "delete", &path, "--yes"]);
    assert!(!Path::new(&path).exists());
}
