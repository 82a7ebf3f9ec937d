//! Cyclic redundancy checks. Those of 16 bits and more are folded by carry-less products in crc-fast; eight bits are a table.

use crc_fast::CrcAlgorithm;
use panoply_core::op::signal::Checksum;

/// The check of a message.
pub fn crc(kind: Checksum, message: &[u8]) -> u64 {
    match kind {
        Checksum::Crc8 => u64::from(message.iter().fold(0, |crc, byte| CRC8[usize::from(crc ^ byte)])),
        Checksum::Crc16 => crc_fast::checksum(CrcAlgorithm::Crc16Arc, message),
        Checksum::Crc16Ccitt => crc_fast::checksum(CrcAlgorithm::Crc16Ibm3740, message),
        Checksum::Crc32 => crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, message),
        Checksum::Crc32c => crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, message),
        Checksum::Crc64 => crc_fast::checksum(CrcAlgorithm::Crc64Nvme, message),
    }
}

/// What each byte makes of a check that is zero: the polynomial x⁸ + x² + x + 1.
static CRC8: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u8, 0);
        while bit < 8 {
            crc = if crc & 0x80 == 0 { crc << 1 } else { (crc << 1) ^ 0x07 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks of `123456789` that every catalogue of them prints.
    #[test]
    fn the_catalogues_check_values() {
        let expected = [
            (Checksum::Crc8, 0xf4),
            (Checksum::Crc16, 0xbb3d),
            (Checksum::Crc16Ccitt, 0x29b1),
            (Checksum::Crc32, 0xcbf4_3926),
            (Checksum::Crc32c, 0xe306_9283),
            (Checksum::Crc64, 0xae8b_1486_0a79_9888),
        ];
        for (kind, check) in expected {
            assert_eq!(crc(kind, b"123456789"), check, "{kind:?}");
        }
    }
}
